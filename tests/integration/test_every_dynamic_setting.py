"""Every setting that changes at run time, with odd values, on a whole broker.

What AlterConfigs accepts works: the broker still serves, the next change is applied whole, and a
restart succeeds and serves. The usual run takes some values of each setting, others every day; all
of them: `python -m tests.integration.test_every_dynamic_setting`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random

import pytest

from ottla.broker.config.definitions import (
    READ_ONLY,
    Setting,
    broker_settings,
    dynamic_only_settings,
)
from ottla.broker.config.listeners import find_broker_setting, find_listener_setting
from ottla.broker.testing.embedded import Broker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from tests.doubles.wire import ConnectionClosed, Wire

BROKER = 4
SET, DELETE = 0, 1
SECONDS = 20.0

NUMBERS = (
    *("0", "1", "2", "-1", "-2", " 5 ", "1.5", "1e3", "0x10", "1_000", "x", "", "NaN", "Infinity"),
    *("2147483647", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "1.7976931348623157E308", "\u0661"),
)
BOOLEANS = ("true", "FALSE", " true ", "", "1", "yes", "null")
LISTS = ("", ",", "a,,b", " a , b ", "compact,delete", "compact", "delete,delete", "x" * 20_000)
TEXTS = (
    *("", " ", "x", "x" * 20_000, "\u00fc", "a\nb", "null", "none", "required", "TLSv1.3", "gzip"),
    *("127.0.0.1", "127.0.0.1:1", "127.0.0.1:x", "127.0.0.1:-1", "[::1]:5", "::1:5", "a:1,a:2"),
    *(
        "DEFAULT",
        "RULE:x",
        "RULE:^CN=(.*)$/$1/,DEFAULT",
        "${file:/etc/passwd:root}",
        "{}",
        "LogAppendTime",
    ),
    *("PLAINTEXT://", "PLAINTEXT://:0", "x://y:z", "PLAINTEXT:SSL", "A:PLAINTEXT"),
)
_VALUES = {"boolean": BOOLEANS, "list": (*LISTS, *TEXTS), "double": NUMBERS}
_VALUES |= dict.fromkeys(("int", "long", "short"), NUMBERS)

#: What a producer may be told instead: a limit is in force.
REFUSED = frozenset(
    (
        *(ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE),
        *(ErrorCode.INVALID_TIMESTAMP, ErrorCode.NOT_ENOUGH_REPLICAS),
        *(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.KAFKA_STORAGE_ERROR),
    )
)
#: Changes whose effect is the first and the last that a change has on the parts of the broker.
NEXT = (("ottla.log.dir.min.free.bytes", "12345"), ("max.connections.per.ip", "54321"))


def names() -> list[str]:
    """Each dynamic setting: without a listener, for one that is open, and for one that is not."""
    tables = {**broker_settings(), **dynamic_only_settings()}
    found = [name for name, each in tables.items() if each.mode != READ_ONLY]
    for name in tables:
        for listener in ("plaintext", "absent"):
            full = f"listener.name.{listener}.{name}"
            if find_listener_setting(full) is not None:
                found.append(full)
    return [*found, "listener.name.plaintext.plain.sasl.jaas.config"]


def values_of(setting: Setting) -> list[str]:
    """Odd values and usual ones."""
    own = [] if setting.default is None else [setting.default]
    if setting.rule.startswith("of "):
        own += setting.rule[3:].split(",")
    return [*dict.fromkeys((*own, *_VALUES.get(setting.type, TEXTS)))]


class Subject:
    """A broker that keeps its data, and what is asked of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.counts: Counter[str] = Counter()

    def ask(self, request: object, version: int) -> object:
        """On a connection of its own; limits may let it wait."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                with Wire(self.broker.bootstrap) as wire:
                    return wire.ask(request, version)  # type: ignore[arg-type]
            except (OSError, ConnectionClosed):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def alter(self, where: str, *changes: tuple[str, int, str | None]) -> tuple[int, str]:
        configs = [AlterableConfig(name, operation, value) for name, operation, value in changes]
        request = IncrementalAlterConfigsRequest(
            [AlterConfigsResource(BROKER, where, configs)], False
        )
        response = self.ask(request, 1)
        assert isinstance(response, IncrementalAlterConfigsResponse)
        row = response.responses[0]
        return row.error_code, row.error_message or ""

    def check_serves(self, about: str) -> None:
        metadata = self.ask(MetadataRequest(topics=None), 4)
        assert isinstance(metadata, MetadataResponse)
        assert [topic.name for topic in metadata.topics] == ["t"], about
        batch = build_batch([(int(time.time() * 1000), b"k", b"v", [])])
        data = TopicProduceData("t", [PartitionProduceData(0, batch)])
        produced = self.ask(ProduceRequest(None, -1, 5000, [data]), 9)
        assert isinstance(produced, ProduceResponse)
        code = produced.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.NONE or code in REFUSED, (about, code)

    def check_next_change(self, name: str, where: str, about: str) -> None:
        changes = [(each, SET, value) for each, value in NEXT if each != name]
        assert self.alter(where, *changes) == (0, ""), about
        parts = self.broker.server.parts
        assert name == NEXT[0][0] or parts.logs.min_free_bytes == int(NEXT[0][1]), about
        assert name == NEXT[1][0] or parts.quotas.connections.max_per_ip == int(NEXT[1][1]), about
        assert self.alter(where, *((each, DELETE, None) for each, _, _ in changes)) == (0, ""), (
            about
        )

    def try_value(self, name: str, where: str, value: str) -> None:
        about = f"{name}={value[:100]!r} for {where or 'all brokers'}"
        code, message = self.alter(where, (name, SET, value))
        if code:
            assert code == ErrorCode.INVALID_REQUEST, (about, code, message)
            assert message, about
            self.counts["refused"] += 1
            return
        self.counts["accepted"] += 1
        self.check_serves(about)
        self.check_next_change(name, where, about)
        self.broker._port = 0  # other tests may take the present one meanwhile
        self.broker.restart()
        self.counts["restarts"] += 1
        assert not self.broker.server.parts.config.ignored, about
        self.check_serves(f"{about}, after a restart")
        self.remove(name, where, about)

    def remove(self, name: str, where: str, about: str) -> None:
        """In steps where Kafka allows only half of a number of threads at once."""
        for _ in range(40):
            code, message = self.alter(where, (name, DELETE, None))
            if not code:
                return
            assert "half the current value" in message or "double the" in message, (about, message)
            current = int(message.rpartition(" ")[2])
            step = current // 2 if "half" in message else current * 2
            assert self.alter(where, (name, SET, str(step))) == (0, ""), about
        raise AssertionError(about)


@contextmanager
def started() -> Iterator[Subject]:
    settings = {"password_encoder_secret": "secret", "password_encoder_iterations": 1024}
    with Broker(broker_id=0, **settings) as broker:
        broker.create_topic("t")
        yield Subject(broker)


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    with started() as made:
        yield made


def cases(name: str) -> list[tuple[str, str]]:
    broker_id_or_all = ("0", "")
    values = values_of(find_broker_setting(name))
    return [(where, value) for value in values for where in broker_id_or_all]


@pytest.mark.parametrize("name", names())
def test_what_is_accepted_works_now_and_at_the_next_start(
    name: str, subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(f"{name} {datetime.now(UTC):%Y-%m-%d}")
    some = random.sample(cases(name), min(3, len(cases(name))))
    for where, value in some:
        subject.try_value(name, where, value)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    # A host name that is not known now may be known later.
    assert not [text for text in errors if "cannot be resolved" not in text]


def main() -> None:
    """All cases, or those of the settings that are named."""
    wanted = sys.argv[1:] or names()
    began = time.monotonic()
    failed = 0
    with started() as subject:
        for name in wanted:
            for where, value in cases(name):
                try:
                    subject.try_value(name, where, value)
                except Exception as error:
                    failed += 1
                    print(f"FAILED {name}={value[:60]!r} {where!r}: {error!r:.300}", flush=True)
                    if not subject.broker.is_running:
                        raise
                    subject.alter(where, (name, DELETE, None))
    counts = subject.counts
    print(
        f"{len(wanted)} settings, {counts['refused'] + counts['accepted']} values: "
        f"{counts['refused']} refused, {counts['accepted']} accepted with {counts['restarts']} "
        f"restarts, {failed} failed, in {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
