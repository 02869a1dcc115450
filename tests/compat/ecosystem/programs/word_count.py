"""Kafka Streams: the word count of Kafka's examples, on 3.9 and 4.x, with each group protocol."""

from __future__ import annotations

from pathlib import Path

from tests.compat.ecosystem.clients import Record, create_topics, produce, read_until
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.jars import java, library
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.apache_kafka import JavaProcess
from tests.doubles.maven import ALONE

OLD, NEW = "3.9.1", "4.3.1"
START_SECONDS = 600.0
_TEXT = ["all streams lead to Kafka", "hello Kafka streams", "join Kafka summit"]
_COUNTS = {"kafka": 3, "streams": 2, "hello": 1, "summit": 1}
_OUT = "streams-wordcount-output"


def _jars(version: str) -> list[Path]:
    """Kafka Streams of a version and the example, which Maven Central has for 4.x only."""
    rows = [
        ("org.apache.kafka", "kafka-streams", version, ""),
        ("org.apache.kafka", "kafka-streams-examples", NEW, ALONE),
        ("org.slf4j", "slf4j-simple", "1.7.36", ""),
    ]
    return [library(f"kafka-streams-examples-{version}", rows)]


def _run(script: Script) -> None:
    with script.start_cluster() as cluster:
        for version in (OLD, NEW):
            with script.check(f"Streams {version}: words are counted, also after a restart"):
                _count(script, cluster, version)
        with script.check(f"Streams {NEW} with group.protocol=streams: refused, as in 3.9"):
            application = _start(script, cluster, NEW, "group.protocol=streams\n")
            try:
                application.wait_for("UnsupportedVersionException", START_SECONDS)
            finally:
                application.kill()


def _start(script: Script, cluster: Cluster, version: str, more: str = "") -> JavaProcess:
    properties = script.directory / f"word-count-{version}.properties"
    properties.write_text(
        f"bootstrap.servers={cluster.bootstrap}\napplication.id=word-count-{version}{len(more)}\n"
        f"state.dir={script.directory / version}\ncommit.interval.ms=500\n{more}"
    )
    main_class = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
    command = java(_jars(version), script.directory, main_class, str(properties))
    return JavaProcess(command, script.directory / f"word-count-{version}{len(more)}.log")


def _count(script: Script, cluster: Cluster, version: str) -> None:
    if version == OLD:
        create_topics(cluster.bootstrap, ["streams-plaintext-input", _OUT])
        produce(cluster.bootstrap, "streams-plaintext-input", _TEXT)
        before = 0
    else:
        before = len(read_until(cluster.bootstrap, _OUT, bool))
    application = _start(script, cluster, version)
    try:
        _wait_for_counts(cluster, before, 1 if version == OLD else 2)
    finally:
        application.stop()
    produce(cluster.bootstrap, "streams-plaintext-input", _TEXT)
    before = len(read_until(cluster.bootstrap, _OUT, bool))
    application = _start(script, cluster, version)
    try:
        _wait_for_counts(cluster, before, 2 if version == OLD else 3)
    finally:
        application.stop()


def _wait_for_counts(cluster: Cluster, before: int, times: int) -> None:
    """Until the last count of each word is that of the text, so many times."""
    expected = {word: times * count for word, count in _COUNTS.items()}

    def has_counts(records: list[Record]) -> bool:
        # The value is a long, big-endian, which the reader gives as text.
        found = {each.key: ord(each.value[-1]) for each in records[before:]}
        return expected.items() <= found.items()

    read_until(cluster.bootstrap, _OUT, has_counts, START_SECONDS)


PROGRAM = Program(
    "word_count",
    "Kafka Streams, word count",
    f"{OLD}, {NEW}",
    ("java", "mvn"),
    _run,
    (
        f"`WordCountDemo` of kafka-streams-examples {NEW}, with Streams {OLD} and {NEW}. The group"
        " protocol of Streams (KIP-1071) needs a broker of 4.1 or later.",
    ),
)
