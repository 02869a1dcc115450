"""Throughput, connections, TLS and latency on a running broker; figures by name.

The lines are a star, not a product: 1,000-byte records, one partition, acks=1 and no compression
are its middle, and each line changes something of it.
"""

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks import bare_responses, clients, latency, targets, wire
from ottla.protocol.messages.api_versions import ApiVersionsRequest

Measurements = dict[str, float]

BASE_TOPIC = "perf-1000-1-1-none"
BASE_RECORDS = 400_000
# What one line of a Java producer writes: enough to be more than the warming up of its JVM.
JAVA_BYTES = 300_000_000
JAVA_RECORDS = 1_000_000
WIRE_SECONDS = 2.0
IDLE_CONNECTIONS = 5_000
FLUSH_CONNECTIONS = 50


@contextmanager
def processor_time(
    target: targets.Target, found: Measurements, label: str
) -> Iterator[Callable[[float], None]]:
    """Adds what the broker's process used, per GB; the caller passes the megabytes."""
    before = target.processor_seconds()
    megabytes: list[float] = []
    yield megabytes.append
    used = target.processor_seconds() - before
    found[f"{label}: broker CPU s per GB"] = used / (megabytes[0] / 1000)


def java_produce(
    target: targets.Target, scale: float, size: int, partitions: int, acks: str, codec: str
) -> Measurements:
    label = f"Java produce {size} B, {partitions} part., acks={acks}, {codec}"
    topic = f"perf-{size}-{partitions}-{acks}-{codec}"
    clients.create_topic(target.bootstrap, topic, partitions)
    count = min(JAVA_RECORDS, JAVA_BYTES // size)
    if topic == BASE_TOPIC:
        count = BASE_RECORDS
    count = int(scale * count)
    found: Measurements = {}
    with processor_time(target, found, label) as moved:
        found[f"{label}: records/s"] = java_records_per_s(
            target.bootstrap, topic, count, size, [f"acks={acks}", f"compression.type={codec}"]
        )
        moved(count * size / 1e6)
    return found


def java_records_per_s(
    bootstrap: str, topic: str, count: int, size: int, settings: Sequence[str]
) -> float:
    """The mean rate of Kafka's ProducerPerformance, a new JVM."""
    output = targets.run_java_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(size)),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}"),
        *settings,
    )
    return float(output.strip().splitlines()[-1].split(",")[1].split()[0])


def java_consume(target: targets.Target, scale: float) -> Measurements:
    count = int(scale * BASE_RECORDS)
    clients.fill_topic(target.bootstrap, BASE_TOPIC, count, 1000)
    found: Measurements = {}
    with processor_time(target, found, "Java consume 1000 B") as moved:
        output = targets.run_java_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--topic", BASE_TOPIC, "--messages", str(count)),
            *("--bootstrap-server", target.bootstrap),
        )
        moved(count / 1000)
    found["Java consume 1000 B: MB/s"] = float(output.strip().splitlines()[-1].split(",")[8])
    return found


def librdkafka_produce(
    target: targets.Target,
    scale: float,
    size: int,
    partitions: int,
    acks: str,
    *,
    with_tls: bool = False,
) -> Measurements:
    label = f"librdkafka produce {size} B, {partitions} part., acks={acks}"
    label += ", TLS" if with_tls else ""
    topic = f"rd-{size}-{partitions}-{acks}" + ("-tls" if with_tls else "")
    clients.create_topic(target.bootstrap, topic, partitions)
    count = int(scale * min(1_000_000, 400_000_000 // size))
    found: Measurements = {}
    options = {"acks": acks, **(target.tls_options() if with_tls else {})}
    with processor_time(target, found, label) as moved:
        found[f"{label}: records/s"] = clients.produce_records_per_s(
            target.bootstrap, topic, count, size, options
        )
        moved(count * size / 1e6)
    return found


def librdkafka_consume(
    target: targets.Target, scale: float, topic: str, *, with_tls: bool = False
) -> Measurements:
    label = "librdkafka consume 1000 B" + (", TLS" if with_tls else "")
    count = int(scale * BASE_RECORDS)
    clients.fill_topic(target.bootstrap, topic, count, 1000)
    found: Measurements = {}
    options = target.tls_options() if with_tls else {}
    with processor_time(target, found, label) as moved:
        found[f"{label}: MB/s"] = clients.consume_megabytes_per_s(
            target.bootstrap, topic, 1, count, options
        )
        moved(count / 1000)
    return found


def wire_produce(target: targets.Target, scale: float, connections: int) -> Measurements:
    """Batches of 16 records of 1,000 bytes, five in flight a connection, six partitions."""
    label = f"produce 1000 B over {connections} connection(s)"
    topic = f"wire-{connections}"
    clients.create_topic(target.bootstrap, topic, 6)
    batch = wire.records(16, 1000)
    leaders = target.leaders(topic, 6)
    wire.check(leaders[0], wire.produce_request(topic, 0, batch))
    frames = [wire.produce_frame(topic, number % 6, batch) for number in range(connections)]
    addresses = [leaders[number % 6] for number in range(connections)]
    before = target.processor_seconds()
    done, _, taken = wire.drive(addresses, frames, WIRE_SECONDS * scale, 5)
    used = target.processor_seconds() - before
    share = taken / (taken + wire.WARM_UP_S)  # the processor time holds the warming up too
    return {
        f"{label}: MB/s": done * 16_000 / taken / 1e6,
        f"{label}: broker CPU s per GB": used * share / (done * 16_000 / 1e9),
    }


def flushed_produce(target: targets.Target, scale: float, partitions: int) -> Measurements:
    """Records of 100 bytes, acks=all, one in flight a connection, synced before the response."""
    label = f"flush.messages=1, {FLUSH_CONNECTIONS} connections, {partitions} partition(s)"
    topic = f"flushed-{partitions}"
    clients.create_topic(target.bootstrap, topic, partitions, {"flush.messages": "1"})
    batch = wire.records(1, 100)
    leaders = target.leaders(topic, partitions)
    for number in range(partitions):
        wire.check(leaders[number], wire.produce_request(topic, number, batch, acks=-1))
    frames = [
        wire.produce_frame(topic, number % partitions, batch, acks=-1)
        for number in range(FLUSH_CONNECTIONS)
    ]
    before = target.processor_seconds()
    addresses = [leaders[number % partitions] for number in range(FLUSH_CONNECTIONS)]
    done, _, taken = wire.drive(addresses, frames, WIRE_SECONDS * scale, 1)
    used = target.processor_seconds() - before
    share = taken / (taken + wire.WARM_UP_S)
    return {
        f"{label}: requests/s": done / taken,
        f"{label}: broker CPU us each": used * share / done * 1e6,
    }


def wire_consume(target: targets.Target, scale: float, connections: int) -> Measurements:
    """Fetches of up to 1 MiB of the same place, two in flight a connection."""
    label = f"fetch over {connections} connection(s)"
    topic, partitions = _filled_topic(target)
    leaders = target.leaders(topic, partitions)
    frames = []
    for partition, leader in enumerate(leaders):
        request = wire.fetch_request(topic, partition, 1000)
        wire.check(leader, request)
        frames.append(wire.encode_request(1, "bench", request, wire.FETCH_VERSION))
    numbers = [number % partitions for number in range(connections)]
    before = target.processor_seconds()
    _, received, taken = wire.drive(
        [leaders[each] for each in numbers],
        [frames[each] for each in numbers],
        WIRE_SECONDS * scale,
        2,
    )
    used = target.processor_seconds() - before
    share = taken / (taken + wire.WARM_UP_S)
    return {
        f"{label}: MB/s": received / taken / 1e6,
        f"{label}: broker CPU s per GB": used * share / (received / 1e9),
    }


def _filled_topic(target: targets.Target) -> tuple[str, int]:
    """A topic that all of the target serves, and its partitions with 10,000 records each."""
    partitions = target.least_partitions
    if partitions == 1:
        clients.fill_topic(target.bootstrap, BASE_TOPIC, 10_000, 1000)
        return BASE_TOPIC, 1
    topic = f"{BASE_TOPIC}-{partitions}"
    clients.create_topic(target.bootstrap, topic, partitions)
    clients.produce_records_per_s(target.bootstrap, topic, 10_000 * partitions, 1000, {})
    return topic, partitions


def tiny(target: targets.Target, scale: float) -> Measurements:
    partitions = target.least_partitions
    clients.create_topic(target.bootstrap, "tiny", partitions)
    count = int(scale * 60_000)
    found = {
        "tiny requests/s, librdkafka": clients.tiny_requests_per_s(target.bootstrap, "tiny", count)
    }
    batch = wire.records(1, 10)
    for connections in (1, 10, 100):
        leaders = target.leaders("tiny", partitions)
        numbers = [number % partitions for number in range(connections)]
        frames = [wire.produce_frame("tiny", each, batch) for each in numbers]
        addresses = [leaders[each] for each in numbers]
        before = target.processor_seconds()
        done, _, taken = wire.drive(addresses, frames, WIRE_SECONDS * scale, 5)
        used = target.processor_seconds() - before
        share = taken / (taken + wire.WARM_UP_S)
        found[f"tiny requests/s over {connections} connection(s)"] = done / taken
        label = f"tiny over {connections} connection(s): broker CPU us each"
        found[label] = used * share / done * 1e6
    return found


def latencies(target: targets.Target, scale: float) -> Measurements:
    """As measured, and above what the client needs with a process that only sends responses: that
    is mostly the time that an idle processor takes to start."""
    found: Measurements = {}
    seconds = max(2.0, 6 * scale)
    for rate in (100, 1000, 10_000):
        topic = f"latency-{rate}-{target.round}"
        clients.create_topic(target.bootstrap, topic, 1)
        [leader] = target.leaders(topic, 1)
        measured = latency.latencies_ms(leader, topic, rate, seconds)
        least = bare_responses.latencies_ms(rate, seconds)
        for percentile, value in measured.items():
            found[f"latency at {rate}/s, {percentile}: ms"] = value
        above = max(0.0, measured["p50"] - least["p50"])
        found[f"latency at {rate}/s, p50 above the bare process: ms"] = above
    return found


def resident(target: targets.Target, scale: float) -> Measurements:
    return {"resident after load: MB": target.resident_megabytes()}


def idle(target: targets.Target, scale: float) -> Measurements:
    """Connections that have sent one request each and stay open, to a broker that has just started:
    later, it has memory left over from what it did before."""
    target.stop()
    target.launch()
    clients.first_produce_s(target.bootstrap, target.started_at)
    count = int(IDLE_CONNECTIONS * scale)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    before = target.resident_megabytes()
    with ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(wire.connect(target.bootstrap))
            wire.call(sock, ApiVersionsRequest(), 0)
        after = target.resident_megabytes()
    return {
        f"{count:,} idle connections: resident MB": after,
        f"{count:,} idle connections: KB each": (after - before) * 1000 / count,
    }
