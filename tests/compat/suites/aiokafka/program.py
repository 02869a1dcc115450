"""aiokafka (asyncio) against one broker."""

import asyncio
import inspect
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.compat.suites.reporting import (
    BOOTSTRAP,
    BROKERS,
    CODECS,
    DEADLINE_S,
    PREFIX,
    check,
    equal,
)

loop = asyncio.new_event_loop()
admin: AIOKafkaAdminClient


def feature(name: str) -> Callable:
    def register(function: Callable) -> Callable:
        features.append((name, function))
        return function

    return register


features: list[tuple[str, Callable]] = []


async def until(condition: Callable, what: str) -> None:
    for _ in range(int(DEADLINE_S * 10)):
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(what)


async def create(topic: str, partitions: int = 1) -> str:
    response = await admin.create_topics([NewTopic(topic, partitions, 1)])
    equal([error[1] for error in response.topic_errors], [0])
    return topic


async def send(topic: str, rows: list[tuple], **settings: object) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, linger_ms=5, **settings)
    await producer.start()
    try:
        sent = [
            await producer.send(topic, value, key, partition, headers=headers)
            for partition, key, value, headers in rows
        ]
        await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_S)
    finally:
        await producer.stop()


async def poll(consumer: AIOKafkaConsumer, count: int) -> list:
    rows: list = []
    until_time = loop.time() + DEADLINE_S
    while len(rows) < count and loop.time() < until_time:
        for records in (await consumer.getmany(timeout_ms=300)).values():
            rows.extend(records)
    return rows


async def read(topic: str, count: int, partitions: int = 1, **settings: object) -> list:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest", **settings
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    rows = await poll(consumer, count)
    await consumer.stop()
    return rows


async def round_trip(name: str, **settings: object) -> None:
    topic = await create(f"{PREFIX}-{name}")
    rows = [(0, b"k%d" % n, b"value-%d" % n * 10, []) for n in range(300)]
    await send(topic, rows, **settings)
    found = [(row.offset, row.key, row.value) for row in await read(topic, 300)]
    equal(found, [(n, b"k%d" % n, b"value-%d" % n * 10) for n in range(300)])


@feature("connect")
async def connect() -> None:
    assert isinstance(await admin.list_topics(), list)


@feature("create-topic")
async def create_topic() -> None:
    topic = await create(f"{PREFIX}-created", 3)

    async def listed() -> bool:
        return topic in await admin.list_topics()

    await until(listed, "not listed")


async def partitions_of(topic: str) -> int:
    return len((await admin.describe_topics([topic]))[0]["partitions"])


@feature("list-topics")
async def list_topics() -> None:
    equal(await partitions_of(f"{PREFIX}-created"), 3)


@feature("auto-create")
async def auto_create() -> None:
    await send(f"{PREFIX}-auto", [(None, b"k", b"v", [])])


@feature("headers")
async def headers() -> None:
    topic = await create(f"{PREFIX}-headers")
    wanted = [("n", b"1"), ("n", b"2"), ("empty", b""), ("grün", b"\x00\xff")]
    await send(topic, [(0, b"k", b"v", wanted)])
    equal(list((await read(topic, 1))[0].headers), wanted)


@feature("null-values")
async def null_values() -> None:
    topic = await create(f"{PREFIX}-null")
    await send(topic, [(0, None, b"v", []), (0, b"k", None, [])])
    equal([(row.key, row.value) for row in await read(topic, 2)], [(None, b"v"), (b"k", None)])


@feature("large-record")
async def large_record() -> None:
    topic = await create(f"{PREFIX}-large")
    value = bytes(range(256)) * 3072
    await send(topic, [(0, None, value, [])])
    assert (await read(topic, 1))[0].value == value


@feature("idempotent")
async def idempotent() -> None:
    await round_trip("idempotent", enable_idempotence=True)


@feature("consume")
async def consume() -> None:
    topic = await create(f"{PREFIX}-consume", 3)
    await send(topic, [(n % 3, b"%d" % n, b"v", []) for n in range(600)])
    rows = await read(topic, 600, 3)
    for partition in range(3):
        mine = [row.offset for row in rows if row.partition == partition]
        equal(mine, list(range(200)))


@feature("list-offsets")
async def list_offsets() -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP)
    await consumer.start()
    place = TopicPartition(f"{PREFIX}-consume", 1)
    found = (await consumer.beginning_offsets([place]), await consumer.end_offsets([place]))
    await consumer.stop()
    equal(found, ({place: 0}, {place: 200}))


@feature("seek-by-time")
async def seek_by_time() -> None:
    topic = await create(f"{PREFIX}-time")
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP)
    await producer.start()
    for n in range(10):
        await producer.send_and_wait(topic, b"v", timestamp_ms=1_700_000_000_000 + n * 1000)
    await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP)
    await consumer.start()
    place = TopicPartition(topic, 0)
    found = await consumer.offsets_for_times({place: 1_700_000_004_500})
    await consumer.stop()
    equal(found[place].offset, 5)


async def member(group: str, topic: str, **settings: object) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=BOOTSTRAP, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False, heartbeat_interval_ms=500, **settings,
    )  # fmt: skip
    await consumer.start()
    return consumer


@feature("group")
async def group() -> None:
    consumer = await member(f"{PREFIX}-g", f"{PREFIX}-consume")
    rows = await poll(consumer, 600)
    await consumer.commit()
    await consumer.stop()
    equal(sorted(int(row.key) for row in rows), list(range(600)))


@feature("group-commit")
async def group_commit() -> None:
    topic = await create(f"{PREFIX}-commit")
    for first in (0, 50):
        await send(topic, [(0, b"%d" % n, b"v", []) for n in range(first, first + 50)])
        consumer = await member(f"{PREFIX}-gc", topic)
        equal([int(row.key) for row in await poll(consumer, 50)], list(range(first, first + 50)))
        await consumer.commit()
        await consumer.stop()


@feature("group-rebalance")
async def group_rebalance() -> None:
    topic = await create(f"{PREFIX}-share", 4)
    first = await member(f"{PREFIX}-gr", topic)
    await until(lambda: len(first.assignment()) == 4, "the first member has not all")
    second = await member(f"{PREFIX}-gr", topic)
    await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, "not shared")
    await second.stop()
    await until(lambda: len(first.assignment()) == 4, "the first member has not all again")
    await first.stop()


@feature("static-member")
async def static_member() -> None:
    ids = []
    for _ in range(2):
        consumer = await member(f"{PREFIX}-gs", f"{PREFIX}-share", group_instance_id="one")
        await until(lambda c=consumer: len(c.assignment()) == 4, "no assignment")
        ids.append(len(consumer.assignment()))
        await consumer.stop()
    equal(ids, [4, 4])


async def transactional(name: str) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=f"{PREFIX}-{name}")
    await producer.start()
    return producer


@feature("txn-commit")
async def txn_commit() -> None:
    topic = await create(f"{PREFIX}-txn")
    producer = await transactional("t")
    async with producer.transaction():
        await producer.send(topic, b"kept-1")
    await producer.stop()
    rows = await read(topic, 1, isolation_level="read_committed")
    equal([row.value for row in rows], [b"kept-1"])


@feature("txn-abort")
async def txn_abort() -> None:
    topic = f"{PREFIX}-txn"
    producer = await transactional("t")
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"dropped")
    await producer.abort_transaction()
    async with producer.transaction():
        await producer.send(topic, b"kept-2")
    await producer.stop()
    rows = await read(topic, 2, isolation_level="read_committed")
    equal([row.value for row in rows], [b"kept-1", b"kept-2"])
    equal([row.value for row in await read(topic, 3)], [b"kept-1", b"dropped", b"kept-2"])


@feature("txn-offsets")
async def txn_offsets() -> None:
    consumer = await member(f"{PREFIX}-gt", f"{PREFIX}-consume")
    await poll(consumer, 600)
    producer = await transactional("to")
    positions = {place: await consumer.position(place) for place in consumer.assignment()}
    async with producer.transaction():
        await producer.send(f"{PREFIX}-txn", b"kept-3")
        await producer.send_offsets_to_transaction(positions, f"{PREFIX}-gt")
    await producer.stop()

    # This client does not request stable offsets: it can read those of before the transaction.
    async def read() -> bool:
        return sum([await consumer.committed(place) or 0 for place in positions]) == 600

    await until(read, "the offsets are not there")
    await consumer.stop()


@feature("txn-fencing")
async def txn_fencing() -> None:
    old = await transactional("f")
    await old.begin_transaction()
    new = await transactional("f")
    try:
        await asyncio.wait_for(old.send_and_wait(f"{PREFIX}-txn", b"late"), DEADLINE_S)
    except KafkaError:
        return
    finally:
        await new.stop()
        await asyncio.wait([loop.create_task(old.stop())], timeout=5)
    raise AssertionError("the older producer was not fenced")


@feature("describe-cluster")
async def describe_cluster() -> None:
    found = await admin.describe_cluster()
    equal(len(found["brokers"]), BROKERS)
    assert found["cluster_id"]


async def topic_configs(name: str) -> str:
    return str(await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)]))


@feature("describe-configs")
async def describe_configs() -> None:
    assert "cleanup.policy" in await topic_configs(f"{PREFIX}-consume")


@feature("alter-configs")
async def alter_configs() -> None:
    name = f"{PREFIX}-consume"
    change = {"retention.ms": "1234567890"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, change)])

    async def seen() -> bool:
        return "1234567890" in await topic_configs(name)

    await until(seen, "the change is not seen")


@feature("create-partitions")
async def create_partitions() -> None:
    await admin.create_partitions({f"{PREFIX}-created": NewPartitions(5)})

    async def seen() -> bool:
        return await partitions_of(f"{PREFIX}-created") == 5

    await until(seen, "not seen")


@feature("delete-records")
async def delete_records() -> None:
    place = TopicPartition(f"{PREFIX}-consume", 2)
    equal(await admin.delete_records({place: RecordsToDelete(150)}), {place: 150})


@feature("list-groups")
async def list_groups() -> None:
    assert f"{PREFIX}-g" in [each[0] for each in await admin.list_consumer_groups()]


@feature("describe-group")
async def describe_group() -> None:
    consumer = await member(f"{PREFIX}-gd", f"{PREFIX}-share")
    found = str(await admin.describe_consumer_groups([f"{PREFIX}-gd"]))
    await consumer.stop()
    assert "Stable" in found, found


@feature("group-offsets")
async def group_offsets() -> None:
    found = await admin.list_consumer_group_offsets(f"{PREFIX}-g")
    equal(sorted(each.offset for each in found.values()), [200, 200, 200])


@feature("delete-topic")
async def delete_topic() -> None:
    await admin.delete_topics([f"{PREFIX}-created"])

    async def gone() -> bool:
        return f"{PREFIX}-created" not in await admin.list_topics()

    await until(gone, "still listed")


def run(function: Callable, *arguments: object, **settings: object) -> Callable[[], None]:
    limit = 3 * DEADLINE_S
    return lambda: loop.run_until_complete(
        asyncio.wait_for(function(*arguments, **settings), limit)
    )


async def main() -> None:
    global admin  # noqa: PLW0603 - made on the loop that uses it
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()


loop.run_until_complete(main())
for acks in (0, 1, "all"):
    check(f"acks-{acks}", run(round_trip, f"acks-{acks}", acks=acks))
for codec in CODECS:
    check(f"codec-{codec}", run(round_trip, codec, compression_type=codec))
for feature_name, feature_function in features:
    check(feature_name, run(feature_function))
loop.run_until_complete(admin.close())
