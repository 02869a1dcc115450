"""kafka-python (pure Python) against one broker."""

import time
from collections.abc import Callable

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import KafkaError
from kafka.protocol.admin import ElectionType
from kafka.structs import OffsetAndMetadata

from tests.compat.suites.reporting import (
    BOOTSTRAP,
    BROKERS,
    CODECS,
    DEADLINE_S,
    PREFIX,
    check,
    equal,
    feature,
    run_all,
    until,
)

admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)


def create(topic: str, partitions: int = 1) -> str:
    admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1}})
    return topic


def send(topic: str, rows: list[tuple], **settings: object) -> None:
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, linger_ms=5, **settings)
    sent = [
        producer.send(topic, value=value, key=key, partition=partition, headers=headers)
        for partition, key, value, headers in rows
    ]
    producer.flush(timeout=DEADLINE_S)
    for each in sent:
        each.get(timeout=DEADLINE_S)
    producer.close()


def poll(consumer: KafkaConsumer, count: int) -> list:
    rows: list = []
    deadline = time.monotonic() + DEADLINE_S
    while len(rows) < count and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=300).values():
            rows.extend(records)
    return rows


def read(topic: str, count: int, partitions: int = 1, **settings: object) -> list:
    consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest", **settings)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    rows = poll(consumer, count)
    consumer.close()
    return rows


def round_trip(name: str, **settings: object) -> None:
    topic = create(f"{PREFIX}-{name}")
    send(topic, [(0, b"k%d" % n, b"value-%d" % n * 10, []) for n in range(300)], **settings)
    found = [(row.offset, row.key, row.value) for row in read(topic, 300)]
    equal(found, [(n, b"k%d" % n, b"value-%d" % n * 10) for n in range(300)])


@feature("connect")
def connect() -> None:
    assert admin.api_versions()


@feature("create-topic")
def create_topic() -> None:
    topic = create(f"{PREFIX}-created", 3)
    until(lambda: topic in admin.list_topics(), "topic not listed")


@feature("list-topics")
def list_topics() -> None:
    described = admin.describe_topics([f"{PREFIX}-created"])
    equal(len(described[0]["partitions"]), 3)


@feature("auto-create")
def auto_create() -> None:
    send(f"{PREFIX}-auto", [(None, b"k", b"v", [])])


@feature("headers")
def headers() -> None:
    topic = create(f"{PREFIX}-headers")
    wanted = [("n", b"1"), ("n", b"2"), ("empty", b""), ("grün", b"\x00\xff")]
    send(topic, [(0, b"k", b"v", wanted)])
    equal([tuple(each) for each in read(topic, 1)[0].headers], wanted)


@feature("null-values")
def null_values() -> None:
    topic = create(f"{PREFIX}-null")
    send(topic, [(0, None, b"v", []), (0, b"k", None, [])])
    equal([(row.key, row.value) for row in read(topic, 2)], [(None, b"v"), (b"k", None)])


@feature("large-record")
def large_record() -> None:
    topic = create(f"{PREFIX}-large")
    value = bytes(range(256)) * 3072
    send(topic, [(0, None, value, [])])
    assert read(topic, 1)[0].value == value


@feature("idempotent")
def idempotent() -> None:
    round_trip("idempotent", enable_idempotence=True)


@feature("consume")
def consume() -> None:
    topic = create(f"{PREFIX}-consume", 3)
    send(topic, [(n % 3, b"%d" % n, b"v", []) for n in range(600)])
    rows = read(topic, 600, 3)
    for partition in range(3):
        mine = [row for row in rows if row.partition == partition]
        equal([row.offset for row in mine], list(range(200)))


@feature("list-offsets")
def list_offsets() -> None:
    place = TopicPartition(f"{PREFIX}-consume", 1)
    found = admin.list_partition_offsets({place: OffsetSpec.LATEST})
    equal(found[place].offset, 200)


@feature("seek-by-time")
def seek_by_time() -> None:
    topic = create(f"{PREFIX}-time")
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP)
    for n in range(10):
        producer.send(topic, b"v", timestamp_ms=1_700_000_000_000 + n * 1000).get(DEADLINE_S)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP)
    place = TopicPartition(topic, 0)
    equal(consumer.offsets_for_times({place: 1_700_000_004_500})[place].offset, 5)
    consumer.close()


def member(group: str, topic: str, **settings: object) -> KafkaConsumer:
    return KafkaConsumer(
        topic, bootstrap_servers=BOOTSTRAP, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False, heartbeat_interval_ms=500, **settings,
    )  # fmt: skip


@feature("group")
def group() -> None:
    consumer = member(f"{PREFIX}-g", f"{PREFIX}-consume")
    rows = poll(consumer, 600)
    consumer.commit()
    consumer.close()
    equal(sorted(int(row.key) for row in rows), list(range(600)))


@feature("group-commit")
def group_commit() -> None:
    topic = create(f"{PREFIX}-commit")
    for first in (0, 50):
        send(topic, [(0, b"%d" % n, b"v", []) for n in range(first, first + 50)])
        consumer = member(f"{PREFIX}-gc", topic)
        equal([int(row.key) for row in poll(consumer, 50)], list(range(first, first + 50)))
        consumer.commit()
        consumer.close()


def share(name: str, topic: str, **settings: object) -> None:
    first = member(name, topic, **settings)

    def counts(*consumers: KafkaConsumer) -> list[int]:
        for consumer in consumers:
            consumer.poll(timeout_ms=100)
        return [len(consumer.assignment()) for consumer in consumers]

    until(lambda: counts(first) == [4], "the first member has not all")
    second = member(name, topic, **settings)
    until(lambda: counts(first, second) == [2, 2], "not shared")
    second.close()
    until(lambda: counts(first) == [4], "the first member has not all again")
    first.close()


@feature("group-rebalance")
def group_rebalance() -> None:
    share(f"{PREFIX}-gr", create(f"{PREFIX}-share", 4))


@feature("group-cooperative")
def group_cooperative() -> None:
    share(
        f"{PREFIX}-gx", f"{PREFIX}-share", partition_assignment_strategy=[CooperativeStickyAssignor]
    )


@feature("static-member")
def static_member() -> None:
    for _ in range(2):
        consumer = member(f"{PREFIX}-gs", f"{PREFIX}-share", group_instance_id="one")
        until(lambda c=consumer: c.poll(100) or len(c.assignment()) == 4, "no assignment")
        consumer.close()
    found = admin.describe_groups([f"{PREFIX}-gs"])[f"{PREFIX}-gs"]
    equal([each["group_instance_id"] for each in found["members"]], ["one"])


def transactional(name: str) -> KafkaProducer:
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=f"{PREFIX}-{name}")
    producer.init_transactions()
    return producer


@feature("txn-commit")
def txn_commit() -> None:
    topic = create(f"{PREFIX}-txn")
    producer = transactional("t")
    producer.begin_transaction()
    producer.send(topic, b"kept-1")
    producer.commit_transaction()
    producer.close()
    rows = read(topic, 1, isolation_level="read_committed")
    equal([row.value for row in rows], [b"kept-1"])


@feature("txn-abort")
def txn_abort() -> None:
    topic = f"{PREFIX}-txn"
    producer = transactional("t")
    producer.begin_transaction()
    producer.send(topic, b"dropped")
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"kept-2")
    producer.commit_transaction()
    producer.close()
    rows = read(topic, 2, isolation_level="read_committed")
    equal([row.value for row in rows], [b"kept-1", b"kept-2"])
    equal([row.value for row in read(topic, 3)], [b"kept-1", b"dropped", b"kept-2"])


@feature("txn-offsets")
def txn_offsets() -> None:
    consumer = member(f"{PREFIX}-gt", f"{PREFIX}-consume")
    poll(consumer, 600)
    producer = transactional("to")
    producer.begin_transaction()
    producer.send(f"{PREFIX}-txn", b"kept-3")
    positions = {
        place: OffsetAndMetadata(consumer.position(place), "", -1)
        for place in consumer.assignment()
    }
    producer.send_offsets_to_transaction(positions, consumer.group_metadata())
    producer.commit_transaction()
    producer.close()
    # This client does not request stable offsets: it can read those of before the transaction.
    until(
        lambda: sum(consumer.committed(place) or 0 for place in consumer.assignment()) == 600,
        "the offsets are not there",
    )
    consumer.close()


@feature("txn-fencing")
def txn_fencing() -> None:
    old = transactional("f")
    old.begin_transaction()
    new = transactional("f")
    try:
        old.send(f"{PREFIX}-txn", b"late").get(DEADLINE_S)
        old.commit_transaction()
    except KafkaError:
        return
    finally:
        new.close()
        _quietly(lambda: old.close(timeout=1))
    raise AssertionError("the older producer was not fenced")


def _quietly(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception as error:
        print("closing:", error)


@feature("txn-admin")
def txn_admin() -> None:
    producer = transactional("ta")
    producer.begin_transaction()
    producer.send(f"{PREFIX}-txn", b"open", partition=0)
    producer.flush()
    assert f"{PREFIX}-ta" in str(admin.list_transactions())
    found = admin.describe_transactions([f"{PREFIX}-ta"])
    assert "Ongoing" in str(found).title(), found
    producer.commit_transaction()
    producer.close()


@feature("describe-cluster")
def describe_cluster() -> None:
    found = admin.describe_cluster()
    equal(len(found["brokers"]), BROKERS)
    assert found["cluster_id"]


def topic_configs(name: str) -> str:
    return str(
        admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name)], config_filter="all"
        )
    )


@feature("describe-configs")
def describe_configs() -> None:
    assert "cleanup.policy" in topic_configs(f"{PREFIX}-consume")


@feature("alter-configs")
def alter_configs() -> None:
    name = f"{PREFIX}-consume"
    admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "1234567890"})]
    )
    until(lambda: "1234567890" in topic_configs(name), "the change is not seen")


@feature("create-partitions")
def create_partitions() -> None:
    topic = f"{PREFIX}-created"
    admin.create_partitions({topic: 5})
    until(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 5, "not seen")


@feature("delete-records")
def delete_records() -> None:
    place = TopicPartition(f"{PREFIX}-consume", 2)
    admin.delete_records({place: 150})
    found = admin.list_partition_offsets({place: OffsetSpec.EARLIEST})
    equal(found[place].offset, 150)


@feature("list-groups")
def list_groups() -> None:
    assert f"{PREFIX}-g" in str(admin.list_groups())


@feature("describe-group")
def describe_group() -> None:
    consumer = member(f"{PREFIX}-gd", f"{PREFIX}-share")
    until(lambda: consumer.poll(100) or len(consumer.assignment()) == 4, "no assignment")
    found = admin.describe_groups([f"{PREFIX}-gd"])[f"{PREFIX}-gd"]
    consumer.close()
    equal(len(found["members"]), 1)


def offset_of(partition: int) -> int:
    found = admin.list_group_offsets({f"{PREFIX}-g": None})[f"{PREFIX}-g"]
    return found[TopicPartition(f"{PREFIX}-consume", partition)].offset


@feature("group-offsets")
def group_offsets() -> None:
    equal([offset_of(number) for number in range(3)], [200, 200, 200])


@feature("reset-offsets")
def reset_offsets() -> None:
    place = TopicPartition(f"{PREFIX}-consume", 0)
    admin.alter_group_offsets(f"{PREFIX}-g", {place: OffsetAndMetadata(17, "", -1)})
    equal(offset_of(0), 17)


@feature("delete-offsets")
def delete_offsets() -> None:
    place = TopicPartition(f"{PREFIX}-consume", 1)
    admin.delete_group_offsets(f"{PREFIX}-g", [place])
    found = admin.list_group_offsets({f"{PREFIX}-g": None})[f"{PREFIX}-g"]
    assert place not in found or found[place].offset < 0


@feature("delete-group")
def delete_group() -> None:
    admin.delete_groups([f"{PREFIX}-g"])
    assert f"'{PREFIX}-g'" not in str(admin.list_groups())


@feature("log-dirs")
def log_dirs() -> None:
    assert f"{PREFIX}-consume" in str(admin.describe_log_dirs())


@feature("elect-leaders")
def elect_leaders() -> None:
    places = {f"{PREFIX}-consume": [0]}
    found = admin.elect_leaders(ElectionType.PREFERRED, places, raise_errors=False)
    assert "84" in str(found) or "NotNeeded" in str(found), found  # election not needed


@feature("reassign")
def reassign() -> None:
    place = TopicPartition(f"{PREFIX}-consume", 0)
    admin.alter_partition_reassignments({place: [0]})
    until(lambda: not admin.list_partition_reassignments([place]), "still in progress")


@feature("delete-topic")
def delete_topic() -> None:
    admin.delete_topics([f"{PREFIX}-created"])
    until(lambda: f"{PREFIX}-created" not in admin.list_topics(), "still listed")


ACKS = {"0": 0, "1": 1, "all": "all"}
for acks, value in ACKS.items():
    check(
        f"acks-{acks}",
        lambda value=value: round_trip(f"acks-{value}", acks=value, enable_idempotence=False),
    )
for codec in CODECS:
    check(f"codec-{codec}", lambda codec=codec: round_trip(codec, compression_type=codec))
run_all()
admin.close()
