"""confluent-kafka (librdkafka) against one broker."""

import time

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

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

BASE = {"bootstrap.servers": BOOTSTRAP}
admin = AdminClient(BASE)


def create(topic: str, partitions: int = 1) -> str:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)
    return topic


def send(topic: str, rows: list[tuple], **settings: object) -> None:
    failures: list[str] = []
    producer = Producer({**BASE, **{name.replace("_", "."): v for name, v in settings.items()}})
    for partition, key, value, headers in rows:
        producer.produce(
            topic, value, key, partition, headers=headers,
            on_delivery=lambda error, _: error and failures.append(str(error)),
        )  # fmt: skip
    equal(producer.flush(DEADLINE_S), 0)
    equal(failures, [])


def read(topic: str, count: int, partitions: int = 1, **settings: object) -> list:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer({**BASE, "group.id": f"{PREFIX}-none", **names})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    rows: list = []
    deadline = time.monotonic() + DEADLINE_S
    while len(rows) < count and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.3):
            assert message.error() is None, message.error()
            rows.append(message)
    consumer.close()
    return rows


def numbered(count: int) -> list[tuple]:
    return [(0, b"k%d" % n, b"value-%d" % n * 10, []) for n in range(count)]


def round_trip(name: str, **settings: object) -> None:
    topic = create(f"{PREFIX}-{name}")
    send(topic, numbered(300), **settings)
    found = [(m.offset(), m.key(), m.value()) for m in read(topic, 300)]
    equal(found, [(n, b"k%d" % n, b"value-%d" % n * 10) for n in range(300)])


@feature("connect")
def connect() -> None:
    found = admin.list_topics(timeout=DEADLINE_S)
    assert len(found.brokers) == BROKERS
    assert found.cluster_id


@feature("create-topic")
def create_topic() -> None:
    topic = create(f"{PREFIX}-created", 3)
    until(lambda: topic in admin.list_topics(timeout=DEADLINE_S).topics, "topic not listed")


@feature("list-topics")
def list_topics() -> None:
    equal(len(admin.list_topics(f"{PREFIX}-created", DEADLINE_S).topics[f"{PREFIX}-created"]
              .partitions), 3)  # fmt: skip


@feature("auto-create")
def auto_create() -> None:
    send(f"{PREFIX}-auto", [(-1, b"k", b"v", [])])


@feature("headers")
def headers() -> None:
    topic = create(f"{PREFIX}-headers")
    wanted = [("n", b"1"), ("n", b"2"), ("none", None), ("empty", b""), ("grün", b"\x00\xff")]
    send(topic, [(0, b"k", b"v", wanted)])
    equal(read(topic, 1)[0].headers(), wanted)


@feature("null-values")
def null_values() -> None:
    topic = create(f"{PREFIX}-null")
    send(topic, [(0, None, b"v", []), (0, b"k", None, []), (0, b"", b"", [])])
    equal([(m.key(), m.value()) for m in read(topic, 3)], [(None, b"v"), (b"k", None), (b"", b"")])


@feature("large-record")
def large_record() -> None:
    topic = create(f"{PREFIX}-large")
    value = bytes(range(256)) * 3072
    send(topic, [(0, None, value, [])])
    assert read(topic, 1)[0].value() == value


@feature("idempotent")
def idempotent() -> None:
    round_trip("idempotent", enable_idempotence=True)


@feature("consume")
def consume() -> None:
    topic = create(f"{PREFIX}-consume", 3)
    send(topic, [(n % 3, b"%d" % n, b"v", []) for n in range(600)])
    rows = read(topic, 600, 3)
    for partition in range(3):
        mine = [m for m in rows if m.partition() == partition]
        equal([m.offset() for m in mine], list(range(200)))
        equal([int(m.key()) for m in mine], list(range(partition, 600, 3)))


@feature("list-offsets")
def list_offsets() -> None:
    place = TopicPartition(f"{PREFIX}-consume", 1)
    for spec, wanted in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 200)):
        equal(admin.list_offsets({place: spec})[place].result(DEADLINE_S).offset, wanted)


@feature("seek-by-time")
def seek_by_time() -> None:
    topic = create(f"{PREFIX}-time")
    producer = Producer(BASE)
    for n in range(10):
        producer.produce(topic, b"v", timestamp=1_700_000_000_000 + n * 1000)
    producer.flush(DEADLINE_S)
    consumer = Consumer({**BASE, "group.id": "none"})
    found = consumer.offsets_for_times([TopicPartition(topic, 0, 1_700_000_004_500)], DEADLINE_S)
    consumer.close()
    equal(found[0].offset, 5)


def member(group: str, topic: str, **settings: object) -> Consumer:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer(
        {**BASE, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
         **names}
    )  # fmt: skip
    consumer.subscribe([topic])
    return consumer


def take(consumer: Consumer, count: int) -> list:
    rows: list = []
    deadline = time.monotonic() + DEADLINE_S
    while len(rows) < count and time.monotonic() < deadline:
        rows += [m for m in consumer.consume(500, 0.3) if m.error() is None]
    return rows


def read_as_group(group: str, topic: str, count: int, **settings: object) -> None:
    consumer = member(group, topic, **settings)
    rows = take(consumer, count)
    consumer.commit(asynchronous=False)
    consumer.close()
    equal(sorted(int(m.key()) for m in rows), list(range(600))[-count:])


@feature("group")
def group() -> None:
    read_as_group(f"{PREFIX}-g", f"{PREFIX}-consume", 600)


@feature("group-commit")
def group_commit() -> None:
    topic = create(f"{PREFIX}-commit")
    name = f"{PREFIX}-gc"
    for first in (0, 50):
        send(topic, [(0, b"%d" % n, b"v", []) for n in range(first, first + 50)])
        consumer = member(name, topic)
        rows = take(consumer, 50)
        equal([int(m.key()) for m in rows], list(range(first, first + 50)))
        consumer.commit(asynchronous=False)
        consumer.close()


def share(group_name: str, topic: str, **settings: object) -> None:
    first = member(group_name, topic, **settings)

    def counts(*consumers: Consumer) -> list[int]:
        for consumer in consumers:
            consumer.consume(100, 0.1)
        return [len(consumer.assignment()) for consumer in consumers]

    until(lambda: counts(first) == [4], "the first member has not all")
    second = member(group_name, topic, **settings)
    until(lambda: counts(first, second) == [2, 2], "not shared")
    second.close()
    until(lambda: counts(first) == [4], "the first member has not all again")
    first.close()


@feature("group-rebalance")
def group_rebalance() -> None:
    share(f"{PREFIX}-gr", create(f"{PREFIX}-share", 4))


@feature("group-cooperative")
def group_cooperative() -> None:
    share(f"{PREFIX}-gx", f"{PREFIX}-share", partition_assignment_strategy="cooperative-sticky")


@feature("static-member")
def static_member() -> None:
    name, topic = f"{PREFIX}-gs", f"{PREFIX}-share"
    for _ in range(2):
        consumer = member(name, topic, group_instance_id="one", session_timeout_ms=30000)
        until(lambda c=consumer: c.consume(1, 0.1) or len(c.assignment()) == 4, "no assignment")
        consumer.close()
    found = admin.describe_consumer_groups([name])[name].result(DEADLINE_S)
    equal([m.group_instance_id for m in found.members], ["one"])


@feature("group-consumer-protocol")
def group_consumer_protocol() -> None:
    read_as_group(f"{PREFIX}-g848", f"{PREFIX}-consume", 600, group_protocol="consumer")


def transactional(name: str) -> Producer:
    producer = Producer({**BASE, "transactional.id": f"{PREFIX}-{name}"})
    producer.init_transactions(DEADLINE_S)
    return producer


@feature("txn-commit")
def txn_commit() -> None:
    topic = create(f"{PREFIX}-txn")
    producer = transactional("t")
    producer.begin_transaction()
    producer.produce(topic, b"kept-1")
    producer.commit_transaction(DEADLINE_S)
    equal([m.value() for m in read(topic, 1)], [b"kept-1"])


@feature("txn-abort")
def txn_abort() -> None:
    topic = f"{PREFIX}-txn"
    producer = transactional("t")
    producer.begin_transaction()
    producer.produce(topic, b"dropped")
    producer.flush(DEADLINE_S)
    producer.abort_transaction(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"kept-2")
    producer.commit_transaction(DEADLINE_S)
    equal([m.value() for m in read(topic, 2)], [b"kept-1", b"kept-2"])
    rows = read(topic, 3, isolation_level="read_uncommitted")
    equal([m.value() for m in rows], [b"kept-1", b"dropped", b"kept-2"])


@feature("txn-offsets")
def txn_offsets() -> None:
    name, source = f"{PREFIX}-gt", f"{PREFIX}-consume"
    consumer = member(name, source)
    take(consumer, 600)
    producer = transactional("to")
    producer.begin_transaction()
    producer.produce(f"{PREFIX}-txn", b"kept-3")
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), DEADLINE_S)
    producer.commit_transaction(DEADLINE_S)
    equal(sum(place.offset for place in consumer.committed(consumer.assignment())), 600)
    consumer.close()


@feature("txn-fencing")
def txn_fencing() -> None:
    old = transactional("f")
    old.begin_transaction()
    transactional("f")
    try:
        old.produce(f"{PREFIX}-txn", b"late")
        old.commit_transaction(DEADLINE_S)
    except KafkaException as error:
        equal(error.args[0].fatal(), True)
        return
    raise AssertionError("the older producer was not fenced")


@feature("describe-cluster")
def describe_cluster() -> None:
    found = admin.describe_cluster().result(DEADLINE_S)
    assert found.cluster_id
    assert found.controller is not None
    equal(len(found.nodes), BROKERS)


@feature("describe-configs")
def describe_configs() -> None:
    topic = ConfigResource(ResourceType.TOPIC, f"{PREFIX}-consume")
    node = ConfigResource(ResourceType.BROKER, "0")
    found = admin.describe_configs([topic])[topic].result(DEADLINE_S)
    equal(found["cleanup.policy"].value, "delete")
    assert admin.describe_configs([node])[node].result(DEADLINE_S)["log.dirs"].value


@feature("alter-configs")
def alter_configs() -> None:
    name = f"{PREFIX}-consume"
    change = ConfigEntry("retention.ms", "1234567890", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
    admin.incremental_alter_configs([wanted])[wanted].result(DEADLINE_S)
    topic = ConfigResource(ResourceType.TOPIC, name)
    until(
        lambda: (
            admin.describe_configs([topic])[topic].result(DEADLINE_S)["retention.ms"].value
            == "1234567890"
        ),
        "the change is not seen",
    )


@feature("create-partitions")
def create_partitions() -> None:
    topic = f"{PREFIX}-created"
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(DEADLINE_S)
    until(
        lambda: len(admin.list_topics(topic, DEADLINE_S).topics[topic].partitions) == 5,
        "the partitions are not seen",
    )


@feature("delete-records")
def delete_records() -> None:
    place = TopicPartition(f"{PREFIX}-consume", 2, 150)
    equal(admin.delete_records([place])[place].result(DEADLINE_S).low_watermark, 150)
    first = admin.list_offsets({place: OffsetSpec.earliest()}, isolation_level=(
        IsolationLevel.READ_UNCOMMITTED))[place].result(DEADLINE_S)  # fmt: skip
    equal(first.offset, 150)


@feature("list-groups")
def list_groups() -> None:
    found = admin.list_consumer_groups().result(DEADLINE_S).valid
    assert f"{PREFIX}-g" in {each.group_id for each in found}


@feature("describe-group")
def describe_group() -> None:
    consumer = member(f"{PREFIX}-gd", f"{PREFIX}-share")
    until(lambda: consumer.consume(1, 0.1) or len(consumer.assignment()) == 4, "no assignment")
    name = f"{PREFIX}-gd"
    found = admin.describe_consumer_groups([name])[name].result(DEADLINE_S)
    consumer.close()
    equal(found.state.name, "STABLE")
    equal(len(found.members[0].assignment.topic_partitions), 4)


def offsets_of(name: str) -> dict[int, int]:
    wanted = ConsumerGroupTopicPartitions(name)
    found = admin.list_consumer_group_offsets([wanted])[name].result(DEADLINE_S)
    return {place.partition: place.offset for place in found.topic_partitions}


@feature("group-offsets")
def group_offsets() -> None:
    equal(offsets_of(f"{PREFIX}-g"), {0: 200, 1: 200, 2: 200})


@feature("reset-offsets")
def reset_offsets() -> None:
    name = f"{PREFIX}-g"
    places = [TopicPartition(f"{PREFIX}-consume", 0, 17)]
    wanted = ConsumerGroupTopicPartitions(name, places)
    admin.alter_consumer_group_offsets([wanted])[name].result(DEADLINE_S)
    equal(offsets_of(name)[0], 17)


@feature("delete-group")
def delete_group() -> None:
    name = f"{PREFIX}-g"
    admin.delete_consumer_groups([name])[name].result(DEADLINE_S)
    found = admin.list_consumer_groups().result(DEADLINE_S).valid
    assert name not in {each.group_id for each in found}


@feature("elect-leaders")
def elect_leaders() -> None:
    from confluent_kafka import ElectionType

    place = TopicPartition(f"{PREFIX}-consume", 0)
    found = admin.elect_leaders(ElectionType.PREFERRED, [place]).result(DEADLINE_S)
    equal([error.name() for error in found.values()], ["ELECTION_NOT_NEEDED"])


@feature("delete-topic")
def delete_topic() -> None:
    topic = f"{PREFIX}-created"
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    until(lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, "still listed")


for acks in ("0", "1", "all"):
    check(f"acks-{acks}", lambda acks=acks: round_trip(f"acks-{acks}", acks=acks))
for codec in CODECS:
    check(f"codec-{codec}", lambda codec=codec: round_trip(codec, compression_type=codec))
run_all()
