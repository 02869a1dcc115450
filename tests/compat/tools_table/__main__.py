"""Every subcommand of the tools of Kafka 4.3.1 on Ottla and on Apache Kafka 3.9.1.

    python -m tests.compat.tools_table

Both brokers serve classic groups only, as Kafka 3.9 in ZooKeeper mode does. Writes docs/tools.md,
and fails if a tool prints something else on Ottla than on Kafka and `EXPECTED` has no reason.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.compat.tools_table.commands import CLASSES, Command, commands, file_texts
from tests.compat.tools_table.expected import EXPECTED
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.kraft_kafka import VERSION, kraft_library

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "tools.md"
SECONDS = 40
SAME = "the same"
SAME_ERROR = "the same error in other words"
DIFFERS = "**differs**"
SETTINGS: dict[str, object] = {
    "broker_id": 0,
    "group_coordinator_rebalance_protocols": "classic",
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
}
# Not of the broker: notices of the logging library, stack traces, and what differs by nature.
_NOISE = re.compile(r"^(SLF4J|\tat |log4j|Picked up|\[20|Option .* deprecated)")
_VARIES = (
    (re.compile(r"\b127\.0\.0\.1[: ]\d+"), "BROKER"),
    (re.compile(r"\bport: \d+"), "port: PORT"),
    (re.compile(r"\b[A-Za-z0-9_-]{22}\b"), "ID"),
    (re.compile(r"console-consumer-\w+(-\w+)*"), "CONSUMER"),
    (re.compile(r"\b1[789]\d{11}\b"), "TIME"),
    (re.compile(r"20\d\d-\d\d-\d\d[T ][\d:.,]+Z?"), "TIME"),
    (re.compile(r"\"?/[\w/.-]+\"?"), "PATH"),
    (re.compile(r"@[0-9a-f]{5,8}\b"), "@HASH"),
    (re.compile(r" +"), " "),
)


class Tools:
    """A process that runs the tools, one after another."""

    def __init__(self, bootstrap: str, files: Path) -> None:
        self._bootstrap, self._files = bootstrap, files
        self._process = subprocess.Popen(
            [
                *("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{kraft_library()}/*"),
                *(str(HERE / "RunTools.java"), str(SECONDS)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, command: Command) -> tuple[int, str]:
        """Return the exit code and what is comparable of the output."""
        arguments = command.arguments.format(F=self._files).split()
        where = ["--bootstrap-server", self._bootstrap]
        if command.tool == "kafka-cluster":
            arguments += where
        else:
            arguments = where + arguments
        words = [CLASSES[command.tool], command.text, *arguments]
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(" ".join(base64.b64encode(each.encode()).decode() for each in words))
        process.stdin.write("\n")
        process.stdin.flush()
        code, _, output = process.stdout.readline().partition(" ")
        return int(code), comparable(base64.b64decode(output).decode(errors="replace"))

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def comparable(output: str) -> str:
    """Return the lines of an output, in order, without what differs by nature."""
    lines = [line.rstrip() for line in output.splitlines() if not _NOISE.match(line)]
    text = "\n".join(sorted(line for line in lines if line))
    for pattern, name in _VARIES:
        text = pattern.sub(name, text)
    return text


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each, text in file_texts().items():
            (folder / each).write_text(text)
        with (
            start_kafka(folder / "kafka", **SETTINGS) as kafka,
            start_broker(folder / "ottla", **SETTINGS) as ottla,
        ):
            both = [Tools(bootstrap, folder) for bootstrap in (kafka.bootstrap, ottla.bootstrap)]
            rows: list[tuple[Command, int, str]] = []
            failures: list[str] = []
            for command in commands():
                (code, text), (our_code, our_text) = (tools.run(command) for tools in both)
                found = EXPECTED.get(str(command), DIFFERS)
                if (code, text) == (our_code, our_text):
                    found = SAME
                elif code > 0 and (code, errors(text)) == (our_code, errors(our_text)):
                    found = SAME_ERROR
                rows.append((command, code, found))
                print("F" if found is DIFFERS else ".", end="", flush=True)
                if found is DIFFERS:
                    failures.append(
                        f"{command}\nKafka: {code}\n{text[:1500]}\n"
                        f"Ottla: {our_code}\n{our_text[:1500]}"
                    )
            for tools in both:
                tools.stop()
    print()
    PAGE.write_text(page(rows))
    if failures:
        sys.exit("\n\n".join(failures))


def errors(output: str) -> set[str]:
    """Return the names of the exceptions in an output."""
    return set(re.findall(r"\b\w+Exception\b", output))


def page(rows: list[tuple[Command, int, str]]) -> str:
    """Return docs/tools.md."""
    equal = sum(found in (SAME, SAME_ERROR) for _, _, found in rows)
    lines = [
        "# Kafka's tools",
        "",
        f"Every subcommand of the tools of Kafka {VERSION} that asks a broker, on Ottla and on",
        "Apache Kafka 3.9.1 in ZooKeeper mode. `python -m tests.compat.tools_table` runs them and",
        "writes this page. Both have `group.coordinator.rebalance.protocols=classic`, since Kafka",
        "3.9 has no other groups there. Outputs are compared without addresses, ids and times:",
        f"{equal} of {len(rows)} are equal; `tests/compat/tools_table/commands.txt` lists all.",
        "",
        "| tool | commands | the same on Ottla | the same error in other words |",
        "|---|---|---|---|",
    ]
    for tool in dict.fromkeys(command.tool for command, _, _ in rows):
        found = [each for command, _, each in rows if command.tool == tool]
        lines.append(
            f"| `{tool}` | {len(found)} | {found.count(SAME)} | {found.count(SAME_ERROR) or ''} |"
        )
    lines += ["", "| not the same | on Kafka 3.9.1 | on Ottla |", "|---|---|---|"]
    for command, code, each in rows:
        kafka = "result" if code == 0 else "does not end" if code < 0 else "error"
        if each not in (SAME, SAME_ERROR):
            lines.append(f"| `{command}` | {kafka} | {each} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
