"""The figures of a run: medians, ratio to Kafka, whether the aim is met; on screen and in files.

Where Kafka was not measured its stored medians stand in (`kafka_baseline.json`, with the machine
and the day they were taken on): a ratio to them is a hint, not a result, and the table states that.
"""

import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

BASELINE = Path(__file__).with_name("kafka_baseline.json")

Aims = list[tuple[str, float | None, float | None]]

# What the project aims at, as ratios to Apache Kafka 3.9.1 (name part, at least, at most); the
# first part that fits counts.
AIMS: Aims = [
    ("CPU s per GB", None, 0.6),
    ("tiny requests/s", 1.2, None),
    ("p50: ms", None, 0.5),
    ("p99: ms", None, 0.5),
    ("start to first produce", None, 0.15),
    ("resident", None, 0.15),
    ("transactions of 100 records: records/s", 1.0, None),
    ("heartbeating every 3 s", None, 1.0),
    ("rebalance of 100 members", None, 1.0),
    ("records/s in a cluster", 1.0, None),
    ("records/s", 1.2, None),
    ("MB/s", 1.2, None),
]

# Aims that hold whatever Kafka does.
OWN_AIMS: Aims = [
    ("fail 1,000 partitions over", None, 3),
    ("controller start with 5,000 partitions", None, 5),
    ("controlled shutdown", None, 2),
    ("offset commits/s", 5_000, None),
    ("start to served with 1,000,000 offset records: s", None, 5),
    ("scrape of 2,000 groups x 10 partitions: ms", None, 500),
]


class Figure(NamedTuple):
    """The median of one measurement; `kafka` is None where there is none."""

    name: str
    ottla: float | None
    kafka: float | None


class Row(NamedTuple):
    """A figure as text."""

    name: str
    ottla: str
    kafka: str
    ratio: str
    aim: str


def verdict(name: str, value: float, aims: Aims) -> str:
    """The first aim whose name fits, and whether it is met."""
    for part, least, most in aims:
        if part in name:
            if least is not None:
                return f">= {least:,} {'met' if value >= least else 'missed'}"
            if most is not None:
                return f"<= {most:,} {'met' if value <= most else 'missed'}"
            break
    return ""


def row_of(figure: Figure) -> Row:
    ratio_text = aim = ""
    if figure.ottla is not None:
        aim = verdict(figure.name, figure.ottla, OWN_AIMS)
        if figure.kafka:
            ratio = figure.ottla / figure.kafka
            ratio_text = f"{ratio:.2f}"
            aim = aim or verdict(figure.name, ratio, AIMS)
    return Row(figure.name, number(figure.ottla), number(figure.kafka), ratio_text, aim)


def number(value: float | None) -> str:
    if value is None:
        return "not measured"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class Report:
    """Collects rounds; `write` writes the figures so far."""

    def __init__(self, path: Path, machine: str, scale: float, with_kafka: bool) -> None:
        self._path = path
        self._machine = machine
        self._scale = scale
        self._with_kafka = with_kafka
        self._collected: dict[str, dict[str, list[float]]] = {}
        self._baseline: dict[str, float] = {}
        self._date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        self.headline = machine
        if not with_kafka:
            self.headline += f"\n{self._without_kafka()}"

    def add(self, broker: str, figures: dict[str, float]) -> None:
        """One round of one broker."""
        for name, value in figures.items():
            self._collected.setdefault(name, {}).setdefault(broker, []).append(value)

    def rows(self) -> list[Row]:
        return [row_of(figure) for figure in self._figures()]

    def print(self) -> None:
        table = Table("what", "Ottla", self._kafka_title(), "ratio", "aim")
        for row in self.rows():
            table.add_row(*row)
        Console(width=140).print(table)
        print(f"also in {self._path} and {self._path.with_suffix('.json')}")

    def write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{self._date}; {self._machine}; {self._describe()}", ""]
        if not self._with_kafka:
            lines += [self._without_kafka(), ""]
        lines += [
            f"| what | Ottla | {self._kafka_title()} | ratio | aim |",
            "|---|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(row)} |" for row in self.rows()]
        self._path.write_text("\n".join(lines) + "\n")
        content = {"machine": self._machine, "date": self._date, "rounds": self._collected}
        self._path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")

    def store_baseline(self) -> None:
        medians = {
            figure.name: figure.kafka for figure in self._figures() if figure.kafka is not None
        }
        content = {"machine": self._machine, "date": self._date, "medians": medians}
        BASELINE.write_text(json.dumps(content, indent=1) + "\n")

    def _describe(self) -> str:
        done = max(
            (len(v) for values in self._collected.values() for v in values.values()), default=0
        )
        return f"medians of {done} rounds, lengths times {self._scale:g}"

    def _figures(self) -> list[Figure]:
        found = []
        for name, values in self._collected.items():
            ottla = statistics.median(values["ottla"]) if "ottla" in values else None
            kafka = statistics.median(values["kafka"]) if "kafka" in values else None
            if not self._with_kafka:
                kafka = self._baseline.get(name)
            found.append(Figure(name, ottla, kafka))
        return found

    def _kafka_title(self) -> str:
        return "Kafka 3.9.1" if self._with_kafka else "Kafka 3.9.1, stored"

    def _without_kafka(self) -> str:
        try:
            stored = json.loads(BASELINE.read_text())
        except FileNotFoundError:
            return "Apache Kafka is not measured, and there are no stored figures of it."
        self._baseline = stored["medians"]
        return (
            "Apache Kafka is not measured here (that needs Java and Maven); its figures are those "
            f"of {stored['date']}, {stored['machine']}: ratios to them are only a hint."
        )
