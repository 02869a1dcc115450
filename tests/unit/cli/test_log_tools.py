"""`ottla log dump|verify|index-check`: JSON and exit codes."""

import io
import json
from pathlib import Path

import pytest

from ottla.cli.log_tools import dump, index_check, verify
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.storage_logs import NOW_MS, append, plain


@pytest.fixture
def data(tmp_path: Path) -> Path:
    manager = LogManager([tmp_path], LogConfig(index_interval_bytes=0))
    manager.load(NOW_MS)
    for partition in range(2):
        log = manager.get_or_create("t", partition, now_ms=NOW_MS)
        for number in range(5):
            append(log, plain(2, NOW_MS + number))
    manager.shutdown(NOW_MS)
    return tmp_path


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_verify_all_partitions_or_one(data: Path) -> None:
    out = io.StringIO()
    assert verify([data], out, deep=True) == 0
    found = lines(out)
    assert [value["directory"] for value in found] == [str(data / "t-0"), str(data / "t-1")]
    assert all(value["records"] == 10 for value in found)
    out = io.StringIO()
    assert verify([data / "t-1"], out) == 0
    (value,) = lines(out)
    assert (value["batches"], value["records"]) == (5, 10), "counted without reading them"


def test_damage_is_exit_code_one(data: Path) -> None:
    log = data / "t-0" / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1])
    out = io.StringIO()
    assert verify([data], out) == 1
    assert lines(out)[0]["problems"] != []
    index = data / "t-1" / "00000000000000000000.index"
    index.write_bytes(b"\x00\x00\x00\x09\x00\x00\x00\x09")
    out = io.StringIO()
    assert index_check([data / "t-1"], out) == 1
    assert "no batch begins" in out.getvalue()


def test_what_is_not_there_is_exit_code_two(data: Path) -> None:
    out = io.StringIO()
    assert verify([data / "none", data], out) == 2
    assert "error" in lines(out)[0]
    assert len(lines(out)) == 3
    out = io.StringIO()
    assert dump([data / "none.log", data / ".lock", data / "t-0"], out) == 2
    assert "it is a directory: name its files" in str(lines(out)[2]["error"])


def test_dump(data: Path) -> None:
    files = [data / "t-0" / f"00000000000000000000.{kind}" for kind in ("log", "index")]
    out = io.StringIO()
    assert dump(files, out, limit=3) == 0
    found = lines(out)
    assert len(found) == 6
    assert found[0]["file"] == str(files[0])
    assert found[0]["record_count"] == 2
    out = io.StringIO()
    dump(files[:1], out, payload=True, limit=1)
    (value,) = lines(out)
    assert value["records"][0]["key"] == "k0"  # type: ignore[index]  # a list of records


def test_dump_of_damage(data: Path) -> None:
    log = data / "t-0" / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1])
    out = io.StringIO()
    assert dump([log], out) == 1
    assert "damaged" in lines(out)[-1]
    metadata = data / "t-0" / "leader-epoch-checkpoint"
    metadata.write_text("junk")
    out = io.StringIO()
    assert dump([metadata], out) == 1
