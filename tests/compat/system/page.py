"""docs/system-tests.md from the last results of each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from tests.compat.system.results import Run, load, troubles
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY

PAGE = REPOSITORY / "docs" / "system-tests.md"
CLIENTS = ("producer", "consumers", "copies", "streams")
_NAMES = {
    "kafka": f"Apache Kafka {KAFKA_VERSION}",
    "ottla": "Ottla",
    "mixed": "mixed",
    "control": "control",
}
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
- mixed: in a rolling upgrade from Kafka to Ottla on the same data, and back, on one ZooKeeper
- control: in the steps of that upgrade with Kafka in place of Ottla

| client | what is checked in the end |
|---|---|
| VerifiableProducer (idempotent, acks=all) | acknowledged records are in the log, once, in order |
| two VerifiableConsumers, one group | each record was delivered; repetitions are counted |
| two TransactionalMessageCopiers, random aborts | the copy is the source as far as offsets say |
| Trogdor's round-trip workload | each record came back |
| Kafka Streams, exactly_once_v2 | the counts of each key are 1, 2, 3, ... |

Each broker has a network namespace and a disk of its own. A partition drops packets without a
word. Each trouble lasts 15 s; the session timeout is 9 s. A full disk has no free byte; a broker
that ends is started when there is room again.

The disks are ext4 on loop devices. A power failure is a kill -9 of the broker and FS_IOC_SHUTDOWN
of its file system, with which the kernel's own tests play one: what was not synced is gone after
the next mount. In "syncs lost" the disk then goes back to its state of 10 s before, as if it had
confirmed syncs that it did not carry out. One broker loses records that it has acknowledged; the
other replicas have them. All brokers lose their power at once only while
`log.flush.interval.messages` is 1 on both kinds of broker. ZooKeeper keeps its power. The
simulation has lost syncs at each single step ([tests](../tests/README.md)).
"""


def write_page() -> None:
    """Writes the page."""
    PAGE.write_text(render(load()))


def render(results: Mapping[str, list[Run]]) -> str:
    """The whole document."""
    if not results:
        return f"{HEAD}\nThere is no result yet.\n"
    lines = [HEAD, "## Loss, doubling, order", "", *_totals(results), ""]
    missing = [name for lane, name in _NAMES.items() if lane not in results]
    if missing:
        lines += [f"There is no finished run yet of: {', '.join(missing)}.", ""]
    for lane, runs in results.items():
        for each in (each for run in runs for each in run["failed"]):
            text = f"{each['trouble']}: {each['reason']}"
            lines.append(f"- {_NAMES[lane]}, not played to its end: {text}")
        lines += [f"- {_NAMES[lane]}: {text}" for run in runs for text in run.get("notes", ())]
    lines.append("")
    lines += [
        "## Pauses",
        "",
        "The longest time in seconds in which a partition gave a client nothing, from the",
        "beginning of a trouble to 5 s after all replicas were in sync again. All processes share",
        "two cores. A pause depends on what the broker that was hit led at that time: where a",
        "trouble was played several times, there is the median, the range and the number. A line",
        "(-): not played.",
        "",
    ]
    lines += _pauses({lane: results[lane] for lane in ("kafka", "ottla") if lane in results})
    upgrades = {lane: results[lane] for lane in ("mixed", "control") if lane in results}
    if upgrades:
        lines += ["", "### Rolling upgrade from Kafka to Ottla and back", "", *_pauses(upgrades)]
    return "\n".join(lines).rstrip() + "\n"


def _totals(results: Mapping[str, list[Run]]) -> list[str]:
    lanes = list(results)
    lines = [f"| | {' | '.join(_NAMES[lane] for lane in lanes)} |", "|---" * (len(lanes) + 1) + "|"]

    def row(title: str, cells: Sequence[object]) -> None:
        lines.append(f"| {title} | {' | '.join(map(str, cells))} |")

    def each_run(name: str) -> list[str]:
        return [", ".join(dict.fromkeys(str(run[name]) for run in results[lane])) for lane in lanes]

    def total(name: str) -> list[int]:
        return [sum(run[name] for run in results[lane]) for lane in lanes]

    row("run on", each_run("day"))
    row("runs", [len(results[lane]) for lane in lanes])
    row("seed", each_run("seed"))
    row("load average of the machine", each_run("load"))
    for name, title in _COUNTS:
        cells = [sum(run["counts"][name] for run in results[lane]) for lane in lanes]
        row(title, [f"{each:,}" for each in cells])
    for name, title in (("lost", "lost"), ("doubled", "doubled"), ("disordered", "out of order")):
        row(f"**{title}**", total(name))
    return lines


def _pauses(results: Mapping[str, list[Run]]) -> list[str]:
    heads = [f"{name}, {_NAMES[lane]}" for name in CLIENTS for lane in results]
    if len(results) == 1:
        heads = list(CLIENTS)
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    rows = [troubles(runs) for runs in results.values()]
    for trouble in dict.fromkeys(trouble for found in rows for trouble in found):
        cells = [
            _pause([row[name] for row in found.get(trouble, ()) if name in row])
            for name in CLIENTS
            for found in rows
        ]
        lines.append(f"| {trouble} | {' | '.join(cells)} |")
    return lines


def _pause(times_ms: Sequence[int]) -> str:
    if not times_ms:
        return "-"
    shortest, longest = min(times_ms) / 1000, max(times_ms) / 1000
    if len(times_ms) == 1:
        return f"{longest:.1f}"
    return f"{median(times_ms) / 1000:.1f} ({shortest:.1f} to {longest:.1f}, {len(times_ms)})"
