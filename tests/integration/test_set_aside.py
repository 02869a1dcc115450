"""Records that are set aside, with a real broker: the fault, and how they come back."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from ottla.cli.zookeeper_server import free_port
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.set_aside import Note, Reason, set_file_aside, write_note
from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually

COUNT = 600


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return str(response.read().decode())


def consumed(ottla: CommandLine) -> list[str]:
    done = ottla.done("consume", "orders", "--from-beginning", "--json")
    return [json.loads(line)["value"] for line in done.output.splitlines()]


def findings(ottla: CommandLine, port: int) -> list[str]:
    done = ottla("doctor", "--json", "--http", f"127.0.0.1:{port}")
    return [each["finding"] for each in done.value["checks"] if each["result"] != "ok"]


def test_a_log_and_a_segment_are_named_restored_and_served(tmp_path: Path) -> None:
    http = free_port()
    settings: Any = {"ottla_metrics_address": f"127.0.0.1:{http}", "log_segment_bytes": "4096"}
    values = [f"order {number}" for number in range(COUNT)]
    with start_broker(tmp_path, **settings) as broker:
        ottla, root = CommandLine(broker.bootstrap), broker.data_directory
        ottla.done("topics", "create", "orders", "--partitions", "1")
        for start in range(0, COUNT, 50):
            text = "".join(f"{value}\n" for value in values[start : start + 50])
            ottla.done("produce", "orders", text=text)
        assert consumed(ottla) == values
        assert get(http, "/readyz") == "ok\n"
        broker.stop()

        # What a broker does that does not trust one of its log directories.
        log, fs = root / "orders-0", RealFileSystem()
        segments = sorted(path.name for path in log.glob("*.log"))
        assert len(segments) > 2
        part = set_file_aside(fs, f"{log}/{segments[-1]}", Reason.AFTER_GAP)
        write_note(fs, str(log), Note(Reason.SECOND_COPY, "another directory has it, too"))
        stray = root / f"orders-0.{'a' * 32}-stray"
        log.rename(stray)
        broker.start()
        assert consumed(ottla) == [], "the broker made a log"
        problem = (
            f"records in {root} are set aside (items: 1) and are not served; they may have no other"
            " copy: orders-0 (second-copy)"
        )
        assert problem in get(http, "/readyz")
        assert findings(ottla, http) == [problem]
        eventually(lambda: problem in broker.log_file.read_text(), "no line in the log")
        metrics = get(http, "/metrics")
        assert f'ottla_records_set_aside{{path="{root}",reason="second-copy"}} 1.0' in metrics
        listed = ottla.done("log", "set-aside", "list", str(root), "--json").value
        assert [(each["reason"], each["first_offset"]) for each in listed] == [("second-copy", 0)]
        arguments = ("restore", "--topic", "orders", str(root), "--log-dir", str(root))
        refused = ottla("log", "set-aside", *arguments, "--replace")
        assert "stop the broker first" in refused.errors
        broker.stop()

        refused = ottla("log", "set-aside", *arguments)
        assert (refused.code, "(no records)" in refused.errors) == (1, False)
        assert f"which is {log} (offsets 0 to 0, 0 bytes)" in refused.errors
        done = ottla.done("log", "set-aside", *arguments, "--replace")
        assert f"restored {log}" in done.output
        broker.start()
        before = consumed(ottla)
        assert before == values[: len(before)]
        assert 0 < len(before) < COUNT
        # Of the log that is back a part is set aside; the one that was replaced is no fault.
        assert "orders-0 (after-gap)" in get(http, "/readyz")
        broker.stop()

        part = part.replace(str(stray), str(log))
        assert ottla.done("log", "set-aside", "restore", part).output.startswith("restored ")
        broker.start()
        assert consumed(ottla) == values
        assert get(http, "/readyz") == "ok\n"
        assert findings(ottla, http) == []
        (left,) = ottla.done("log", "set-aside", "list", str(root), "--json").value
        assert (left["reason"], left["needs_attention"]) == ("replaced", False)
        assert 'reason="replaced"} 1.0' in get(http, "/metrics")
        # While the broker runs.
        ottla.done("log", "set-aside", "discard", left["path"], "--yes")
        eventually(lambda: 'reason="replaced"' not in get(http, "/metrics"), "it is still counted")
        broker.stop()
