"""docs/system-tests.md from the last results of each lane."""

from __future__ import annotations

import json
from typing import Any

from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY

RESULTS = REPOSITORY / ".cache" / "system-tests"
PAGE = REPOSITORY / "docs" / "system-tests.md"
CLIENTS = ("producer", "consumers", "copies", "streams")
_NAMES = {"kafka": f"Apache Kafka {KAFKA_VERSION}", "ottla": "Ottla", "mixed": "mixed"}
_COUNTS = (
    ("acknowledged", "records acknowledged to VerifiableProducer"),
    ("delivered again", "records that VerifiableConsumers got a second time"),
    ("copied", "records copied in transactions"),
    ("copier failures", "copiers that ended with an error and were started again"),
    ("round trips", "round trips of Trogdor"),
    ("failed workloads", "round-trip workloads that failed"),
    ("counted", "counts of Kafka Streams"),
)

HEAD = f"""# Kafka's system-test tools

`make compat-system` generates this page. Do not edit. It runs the tools of Kafka's own system tests
while brokers are restarted, killed, replaced, cut off, stopped and filled up:

- on three brokers of Ottla, and with the same script on three of Apache Kafka {KAFKA_VERSION}
- in a rolling upgrade from Kafka to Ottla on the same data, and back, on one ZooKeeper

| client | what is checked in the end |
|---|---|
| VerifiableProducer (idempotent, acks=all) | acknowledged records are in the log, once, in order |
| two VerifiableConsumers, one group | each record was delivered; repetitions are counted |
| two TransactionalMessageCopiers, random aborts | the copy is the source as far as offsets say |
| Trogdor's round-trip workload | each record came back |
| Kafka Streams, exactly_once_v2 | the counts of each key are 1, 2, 3, ... |

Each broker has a network namespace and a disk (tmpfs) of its own. A partition drops packets without
a word. Each trouble lasts 15 s; the session timeout is 9 s. A full disk has no free byte; a broker
that ends is started when there is room again. Lost fsyncs are not part of this: the simulation
covers them ([testing](testing.md)).
"""


def load() -> dict[str, dict[str, Any]]:
    """The last result of each lane on this machine."""
    found = {lane: RESULTS / f"{lane}.json" for lane in _NAMES}
    return {lane: json.loads(path.read_text()) for lane, path in found.items() if path.exists()}


def write_page() -> None:
    """Writes the page."""
    PAGE.write_text(render(load()))


def render(results: dict[str, dict[str, Any]]) -> str:
    """The whole document."""
    if not results:
        return f"{HEAD}\nThere is no result yet.\n"
    lines = [HEAD, "## Loss, doubling, order", "", *_totals(results), ""]
    missing = [name for lane, name in _NAMES.items() if lane not in results]
    if missing:
        lines += [f"There is no finished run yet of: {', '.join(missing)}.", ""]
    for lane, result in results.items():
        lines += [f"- {_NAMES[lane]}, not played to its end: {each}" for each in result["failed"]]
    lines.append("")
    lines += [
        "## Pauses",
        "",
        "The longest time in seconds in which a partition gave a client nothing, from the",
        "beginning of a trouble to 5 s after all replicas were in sync again. All processes share",
        "two cores, and each pause is one measurement: it depends on what the broker that was hit",
        "led at that time. A line (-): not played in this run.",
        "",
    ]
    lines += _pauses({lane: results[lane] for lane in ("kafka", "ottla") if lane in results})
    if "mixed" in results:
        lines += ["", "### Rolling upgrade from Kafka to Ottla and back", ""]
        lines += _pauses({"mixed": results["mixed"]})
    return "\n".join(lines).rstrip() + "\n"


def _totals(results: dict[str, dict[str, Any]]) -> list[str]:
    lanes = list(results)
    lines = [f"| | {' | '.join(_NAMES[lane] for lane in lanes)} |", "|---" * (len(lanes) + 1) + "|"]

    def row(title: str, cells: list[Any]) -> str:
        return f"| {title} | {' | '.join(map(str, cells))} |"

    lines.append(row("run on", [results[lane]["day"] for lane in lanes]))
    lines.append(row("seed", [results[lane]["seed"] for lane in lanes]))
    lines.append(row("load average of the machine", [results[lane]["load"] for lane in lanes]))
    for name, title in _COUNTS:
        lines.append(row(title, [f"{results[lane]['counts'][name]:,}" for lane in lanes]))
    for name, title in (("lost", "lost"), ("doubled", "doubled"), ("disordered", "out of order")):
        lines.append(row(f"**{title}**", [results[lane][name] for lane in lanes]))
    return lines


def _pauses(results: dict[str, dict[str, Any]]) -> list[str]:
    heads = [f"{name}, {_NAMES[lane]}" for name in CLIENTS for lane in results]
    if len(results) == 1:
        heads = list(CLIENTS)
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    rows = [{row["trouble"]: row for row in result["rows"]} for result in results.values()]
    for trouble in dict.fromkeys(trouble for found in rows for trouble in found):
        cells = [
            f"{found[trouble][name] / 1000:.1f}" if trouble in found else "-"
            for name in CLIENTS
            for found in rows
        ]
        lines.append(f"| {trouble} | {' | '.join(cells)} |")
    return lines
