"""Apache Kafka 3.9.1 on a directory where something is set aside, and on what was restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.set_aside import NOTE_FILE, Note, Reason, set_file_aside, write_note
from tests.doubles.apache_kafka import ApacheKafka, start_kafka, start_zookeeper
from tests.doubles.command_line import CommandLine
from tests.doubles.kafka_traffic import Row, consume, produce

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]


def created(kafka: ApacheKafka, *topics: str) -> None:
    for topic in topics:
        kafka.topics(
            *("--create", "--topic", topic, "--partitions", "1"),
            *("--config", "segment.bytes=40000", "--config", "retention.ms=-1"),
        )
        produce(kafka, topic, 0, 3000)


def test_kafka_leaves_it_alone_and_serves_what_is_restored(tmp_path: Path) -> None:
    fs, ottla = RealFileSystem(), CommandLine("127.0.0.1:1")
    with start_zookeeper(tmp_path) as zookeeper:
        rows: dict[str, list[Row]] = {}
        with start_kafka(tmp_path, zookeeper=zookeeper) as kafka:
            created(kafka, "part", "whole")
            rows = {topic: consume(kafka, topic) for topic in ("part", "whole")}
            root = kafka.log_directories[0]
            kafka.stop()
        first, *_, last = sorted(str(path) for path in (root / "part-0").glob("*.log"))
        aside = {set_file_aside(fs, path, Reason.AFTER_GAP) for path in (first, last)}
        write_note(fs, f"{root}/whole-0", Note(Reason.NOT_ASSIGNED, "why"))
        stray = root / f"whole-0.{'a' * 32}-stray"
        (root / "whole-0").rename(stray)
        contents = {path: Path(path).read_bytes() for path in aside}
        contents[f"{stray}/{NOTE_FILE}"] = (stray / NOTE_FILE).read_bytes()

        with start_kafka(tmp_path, zookeeper=zookeeper) as kafka:
            inside = rows["part"][: len(consume(kafka, "part"))]
            assert 0 < len(inside) < len(rows["part"])
            assert consume(kafka, "whole") == []
            kafka.stop()
        for path, content in contents.items():
            assert Path(path).read_bytes() == content, path

        listed = ottla.done("log", "set-aside", "list", str(root), "--json").value
        assert {each["path"] for each in listed} == {*aside, str(stray)}
        done = ottla("log", "set-aside", "restore", "--all", str(root), "--replace")
        assert done.code == 0, done
        with start_kafka(tmp_path, zookeeper=zookeeper) as kafka:
            for topic, expected in rows.items():
                assert consume(kafka, topic) == expected
            output = kafka.output()
            kafka.stop()
        errors = [line for line in output.splitlines() if "ERROR" in line]
        assert all("rebuilding index files" in line for line in errors), errors
        # Kafka opens a -stray log, too, and leaves its indexes with the space for more entries.
        for topic in rows:
            ottla.done("log", "verify", f"{root}/{topic}-0")
