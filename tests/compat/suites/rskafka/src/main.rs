//! rskafka against one broker: a line for each feature, see ../../README.md.
//!
//! The client has partitions, topics and offsets; it has no groups and no transactions.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use tokio::time::{sleep, timeout};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const DEADLINE: Duration = Duration::from_secs(40);
static CLIENT: OnceLock<Client> = OnceLock::new();

fn client() -> &'static Client {
    CLIENT.get().expect("connected")
}

async fn check(name: &str, feature: impl Future<Output = Outcome<()>>) {
    let outcome = timeout(DEADLINE, feature).await.unwrap_or_else(|_| Err("not done in time".into()));
    match outcome {
        Ok(()) => println!("ok {name}"),
        Err(error) => println!("fail {name}: {}", error.to_string().replace('\n', " ")),
    }
}

fn want(good: bool, found: impl std::fmt::Debug) -> Outcome<()> {
    if good { Ok(()) } else { Err(format!("{found:?}").into()) }
}

fn topic(name: &str) -> String {
    format!("{}-{name}", std::env::var("COMPAT_PREFIX").expect("a prefix"))
}

async fn partition(name: &str, number: i32) -> Outcome<PartitionClient> {
    Ok(client().partition_client(topic(name), number, UnknownTopicHandling::Retry).await?)
}

async fn create(name: &str, partitions: i32) -> Outcome<PartitionClient> {
    client().controller_client()?.create_topic(topic(name), partitions, 1, 30_000).await?;
    partition(name, 0).await
}

fn record(key: Option<&[u8]>, value: Option<&[u8]>) -> Record {
    Record {
        key: key.map(<[u8]>::to_vec),
        value: value.map(<[u8]>::to_vec),
        headers: BTreeMap::new(),
        timestamp: DateTime::from_timestamp_millis(1_700_000_000_000).expect("a time"),
    }
}

fn numbered(first: usize, count: usize) -> Vec<Record> {
    (first..first + count)
        .map(|n| record(Some(n.to_string().as_bytes()), Some(format!("value-{n}").repeat(10).as_bytes())))
        .collect()
}

async fn read(from: &PartitionClient, count: usize) -> Outcome<Vec<Record>> {
    let mut rows = Vec::new();
    while rows.len() < count {
        let (more, _) = from.fetch_records(rows.len() as i64, 1..4_000_000, 500).await?;
        for row in more {
            want(row.offset == rows.len() as i64, (row.offset, rows.len()))?;
            rows.push(row.record);
        }
    }
    Ok(rows)
}

async fn round_trip(name: &str, compression: Compression) -> Outcome<()> {
    let to = create(name, 1).await?;
    let offsets = to.produce(numbered(0, 300), compression).await?;
    want(offsets == (0..300).collect::<Vec<i64>>(), &offsets)?;
    want(read(&to, 300).await? == numbered(0, 300), "other records")
}

async fn has_topic(name: &str, partitions: usize) -> Outcome<bool> {
    let found = client().list_topics().await?;
    Ok(found.iter().any(|each| each.name == topic(name) && each.partitions.len() == partitions))
}

#[tokio::main]
async fn main() {
    let bootstrap = std::env::var("COMPAT_BOOTSTRAP").expect("a broker");
    check("connect", async {
        let made = ClientBuilder::new(vec![bootstrap]).build().await?;
        made.list_topics().await?;
        CLIENT.set(made).map_err(|_| "connected twice".into())
    })
    .await;
    check("create-topic", async { create("created", 3).await.map(|_| ()) }).await;
    check("list-topics", async { want(has_topic("created", 3).await?, "not listed") }).await;
    println!("lacks auto-create");
    println!("lacks acks-0");
    println!("lacks acks-1");
    check("acks-all", round_trip("acks", Compression::NoCompression)).await;
    let codecs = [
        ("gzip", Compression::Gzip),
        ("snappy", Compression::Snappy),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
    ];
    for (name, compression) in codecs {
        check(&format!("codec-{name}"), round_trip(name, compression)).await;
    }
    println!("lacks idempotent");
    check("headers", async {
        let to = create("headers", 1).await?;
        let mut sent = record(None, Some(b"v"));
        sent.headers = BTreeMap::from([("n".into(), b"1".to_vec()), ("grün".into(), vec![0, 255])]);
        to.produce(vec![sent.clone()], Compression::NoCompression).await?;
        let found = read(&to, 1).await?;
        want(found == [sent], &found)
    })
    .await;
    check("null-values", async {
        let to = create("null", 1).await?;
        let sent = vec![record(None, Some(b"v")), record(Some(b"k"), None)];
        to.produce(sent.clone(), Compression::NoCompression).await?;
        let found = read(&to, 2).await?;
        want(found == sent, &found)
    })
    .await;
    check("large-record", async {
        let to = create("large", 1).await?;
        let sent = vec![record(None, Some(&b"0123456789abcdef".repeat(48 << 10)))];
        to.produce(sent.clone(), Compression::NoCompression).await?;
        want(read(&to, 1).await? == sent, "another value")
    })
    .await;
    check("consume", async {
        create("consume", 3).await?;
        for number in 0..3 {
            let to = partition("consume", number).await?;
            let sent = numbered(200 * number as usize, 200);
            to.produce(sent.clone(), Compression::NoCompression).await?;
            want(read(&to, 200).await? == sent, "other records")?;
        }
        Ok(())
    })
    .await;
    check("list-offsets", async {
        let from = partition("consume", 1).await?;
        let found = (from.get_offset(OffsetAt::Earliest).await?, from.get_offset(OffsetAt::Latest).await?);
        want(found == (0, 200), found)
    })
    .await;
    check("seek-by-time", async {
        let to = create("time", 1).await?;
        let start: DateTime<Utc> = DateTime::from_timestamp_millis(1_700_000_000_000).ok_or("no time")?;
        let sent = (0..10).map(|n| {
            let mut each = record(None, Some(b"v"));
            each.timestamp = start + TimeDelta::seconds(n);
            each
        });
        to.produce(sent.collect(), Compression::NoCompression).await?;
        let found = to.get_offset(OffsetAt::Timestamp(start + TimeDelta::milliseconds(4_500))).await?;
        want(found == 5, found)
    })
    .await;
    check("delete-records", async {
        let from = partition("consume", 2).await?;
        from.delete_records(150, 30_000).await?;
        let found = from.get_offset(OffsetAt::Earliest).await?;
        want(found == 150, found)
    })
    .await;
    check("delete-topic", async {
        client().controller_client()?.delete_topic(topic("created"), 30_000).await?;
        while has_topic("created", 3).await? {
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    })
    .await;
}
