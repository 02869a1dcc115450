"""The `kafka.*` options: which of the clients' settings are used, harmless, or refused.

A setting that cannot do anything here because another part does its work (poll loops, rebalances)
is accepted, so that options can be moved over from the JVM connector as they are. One that would
change what a query reads is refused, with the option to use instead. Any other name is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.security_options import (
    SECURITY_SETTINGS,
    SecurityOptions,
    parse_security,
)
from pyspark_ottla.options.values import INT_MAX, OptionReader, invalid, near_matches

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

SHARED_SETTINGS = (
    "bootstrap.servers",
    "client.id",
    "request.timeout.ms",
    "default.api.timeout.ms",
    *SECURITY_SETTINGS,
)
CONSUMER_SETTINGS = (
    "group.id",
    "isolation.level",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.min.bytes",
    "fetch.max.wait.ms",
    "check.crcs",
    "client.rack",
)
PRODUCER_SETTINGS = (
    "acks",
    "compression.type",
    "compression.level",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "batch.size",
    "max.request.size",
    "delivery.timeout.ms",
    "enable.idempotence",
    "transaction.timeout.ms",
)
# Settings of components that do not exist here; no value changes what is read or written.
HARMLESS_SETTINGS = (
    "max.poll.records",
    "max.poll.interval.ms",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "group.instance.id",
    "group.protocol",
    "partition.assignment.strategy",
    "metadata.max.age.ms",
    "metadata.max.idle.ms",
    "metadata.recovery.strategy",
    "metadata.recovery.rebootstrap.trigger.ms",
    "group.remote.assignor",
    "connections.max.idle.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "retries",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
    "receive.buffer.bytes",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "client.dns.lookup",
    "allow.auto.create.topics",
    "exclude.internal.topics",
    "auto.include.jmx.reporter",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "enable.metrics.push",
    "linger.ms",
    "buffer.memory",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "partitioner.ignore.keys",
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.truststore.password",
    "ssl.keystore.password",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "sasl.login.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.buffer.seconds",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.kerberos.service.name",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
)
REFUSED_SETTINGS = {
    "auto.offset.reset": "Use the option startingOffsets to set where reading begins",
    "key.deserializer": "Keys come as binary; cast them in the query or set keyFormat to string",
    "value.deserializer": "Values come as binary; cast them in the query or set valueFormat",
    "key.serializer": "Keys are written as they are: string or binary columns",
    "value.serializer": "Values are written as they are: string or binary columns",
    "enable.auto.commit": "Spark keeps the position in its checkpoint; to show it to other tools "
    "set commitOffsets to true",
    "auto.commit.interval.ms": "Use the option commitOffsets",
    "interceptor.classes": "Java interceptors cannot run here",
    "transactional.id": "Set delivery to exactly-once; the connector names its transactions",
    "security.providers": "Java's security providers cannot run here",
    "ssl.engine.factory.class": "Java classes cannot run here; name PEM files in kafka.ssl.*",
    "ssl.cipher.suites": "The system's OpenSSL configuration sets the ciphers that Python uses",
    "sasl.client.callback.handler.class": "Java classes cannot run here; give the credentials in "
    "kafka.sasl.jaas.config",
    "sasl.oauthbearer.jwt.retriever.class": "Java classes cannot run here; set "
    "kafka.sasl.oauthbearer.token.endpoint.url or kafka.sasl.oauthbearer.token.function",
    "partitioner.class": "Add a partition column to choose partitions yourself",
}

# All tasks of a batch end within it. It is the brokers' default of transaction.max.timeout.ms.
TRANSACTION_TIMEOUT_MS = 900_000


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a connection and its requests need, checked; the same in every process of a query."""

    bootstrap: str
    client_id: str
    security: SecurityOptions
    group_id: str | None
    request_timeout_ms: int
    api_timeout_ms: int  # for a look-up with all its repetitions
    read_committed: bool
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    partition_fetch_bytes: int | None
    check_crcs: bool
    rack: str
    acks: int
    codec: str
    codec_level: int | None
    batch_bytes: int
    request_bytes_max: int
    delivery_timeout_ms: int
    idempotent: bool
    transaction_timeout_ms: int


def _check_names(options: Mapping[str, str], used: tuple[str, ...], other: tuple[str, ...]) -> None:
    for full in sorted(options):
        name = full.lower().removeprefix("kafka.")
        if name == full.lower():
            continue
        if name in REFUSED_SETTINGS:
            raise ConnectorError(
                errors.UNSUPPORTED_OPTION,
                f"The option kafka.{name} cannot be set",
                REFUSED_SETTINGS[name],
            )
        if name not in used and name not in other:
            hint = near_matches(f"kafka.{name}", [f"kafka.{known}" for known in used])
            raise ConnectorError(
                errors.UNKNOWN_OPTION,
                f"There is no option kafka.{name}",
                f"{hint}Settings of the Java client that can have no effect here are accepted; "
                "this is none of them",
            )


def _parse_bootstrap(reader: OptionReader) -> str:
    option = "kafka.bootstrap.servers"
    text = reader.text(option)
    if text is None and reader.is_empty:
        raise ConnectorError(
            errors.MISSING_OPTION,
            "No option came with this read or write",
            "Spark hands the options of a SQL table to no Python sink, and to a source only if the "
            "table was created without a list of columns. Create it without one, or use CREATE "
            "TEMPORARY VIEW name USING ottla OPTIONS (...); write with DataFrame.write",
        )
    if text is None:
        raise ConnectorError(
            errors.MISSING_OPTION,
            f"The option {option} is not set",
            "Set it to the brokers to start from, such as localhost:9092",
        )
    servers = [server.strip() for server in text.split(",") if server.strip()]
    for server in servers:
        # A host name, an IPv4 address, or an IPv6 address in brackets; then the port.
        match = re.fullmatch(r"(?:\w+://)?(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/]+):(\d{1,5})", server)
        if match is None or not 0 < int(match.group(2)) < 1 << 16:
            raise invalid(option, text, "host:port, or several of them with commas between")
    if not servers:
        raise invalid(option, text, "host:port, or several of them with commas between")
    return ",".join(server.rpartition("://")[2] for server in servers)


def parse_client_options(options: Mapping[str, str], *, writes: bool) -> ClientOptions:
    """Checks every `kafka.*` option. Settings of the other role are accepted and do nothing."""
    consumer, producer = SHARED_SETTINGS + CONSUMER_SETTINGS, SHARED_SETTINGS + PRODUCER_SETTINGS
    used, other = (producer, consumer) if writes else (consumer, producer)
    _check_names(options, used, other + HARMLESS_SETTINGS)
    reader = OptionReader(options)
    isolation = reader.choice(
        "kafka.isolation.level", "read_uncommitted", ("read_uncommitted", "read_committed")
    )
    codec = reader.choice("kafka.compression.type", "none", CODECS)
    # Java's producer has a level for each codec, librdkafka one for all.
    level = f"kafka.compression.{codec}.level"
    if reader.text(level) is None:
        level = "kafka.compression.level"
    acks = reader.choice("kafka.acks", "all", ("all", "-1", "0", "1"))
    idempotent = reader.boolean("kafka.enable.idempotence", acks in ("all", "-1"))
    if idempotent and acks not in ("all", "-1"):
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            f"kafka.enable.idempotence is true, but kafka.acks is {acks}",
            "Set kafka.acks to all, or kafka.enable.idempotence to false",
        )
    return ClientOptions(
        bootstrap=_parse_bootstrap(reader),
        client_id=reader.text("kafka.client.id") or "pyspark-ottla",
        security=parse_security(reader),
        group_id=reader.text("kafka.group.id"),
        request_timeout_ms=reader.integer_or(
            "kafka.request.timeout.ms", 30_000, minimum=1, maximum=INT_MAX
        ),
        api_timeout_ms=reader.integer_or(
            "kafka.default.api.timeout.ms", 60_000, minimum=1, maximum=INT_MAX
        ),
        read_committed=isolation == "read_committed",
        fetch_min_bytes=reader.integer_or("kafka.fetch.min.bytes", 1, minimum=0, maximum=INT_MAX),
        fetch_max_wait_ms=reader.integer_or(
            "kafka.fetch.max.wait.ms", 500, minimum=0, maximum=INT_MAX
        ),
        partition_fetch_bytes=reader.integer(
            "kafka.max.partition.fetch.bytes", minimum=1, maximum=INT_MAX
        ),
        check_crcs=reader.boolean("kafka.check.crcs", True),
        rack=reader.text("kafka.client.rack") or "",
        acks={"all": -1, "-1": -1, "0": 0, "1": 1}[acks],
        codec=codec,
        codec_level=reader.integer(level, minimum=-131072, maximum=22),
        # The Java producer's 16 KiB suits single sends; a task writes thousands of rows at once.
        batch_bytes=reader.integer_or("kafka.batch.size", 256 * 1024, minimum=0, maximum=INT_MAX),
        request_bytes_max=reader.integer_or(
            "kafka.max.request.size", 1024 * 1024, minimum=1, maximum=INT_MAX
        ),
        delivery_timeout_ms=reader.integer_or(
            "kafka.delivery.timeout.ms", 120_000, minimum=1, maximum=INT_MAX
        ),
        idempotent=idempotent,
        transaction_timeout_ms=reader.integer_or(
            "kafka.transaction.timeout.ms",
            TRANSACTION_TIMEOUT_MS,
            minimum=1,
            maximum=INT_MAX,
        ),
    )
