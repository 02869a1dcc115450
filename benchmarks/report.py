"""The figures of a run: warm medians with their spread, ratios to Kafka, whether an aim is met.

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

from benchmarks.profiles import Profile, table

BASELINE = Path(__file__).with_name("kafka_baseline.json")

WORKERS = "ottla workers"
"""The name of the target with workers."""

BESIDE = "ottla beside"
"""The name of the target that runs another checkout."""

Aims = list[tuple[str, float | None, float | None]]

# What the project aims at, as ratios of the warm medians to those of Apache Kafka 3.9.1 (name part,
# at least, at most); the first part that fits counts.
AIMS: Aims = [
    ("clients' share", None, None),
    ("produce 1000 B over 1 connection(s): MB/s", None, None),
    ("connection(s): broker CPU s per GB", None, 0.8),
    ("CPU s per GB", None, 0.6),
    ("tiny requests/s over 1 ", 1.5, None),
    ("tiny requests/s over 10 ", 1.2, None),
    ("tiny requests/s over 100 ", 1.0, None),
    ("over 10 connection(s): MB/s", 1.0, None),
    ("over 100 connection(s): MB/s", 1.0, None),
    ("fetch over 1 connection(s): MB/s", 1.0, None),
    ("above the bare process", None, 0.4),
    ("p99.9: ms", None, 1.0),
    ("start to first produce", None, 0.15),
    ("resident", None, 0.1),
    ("offset commits/s", 1.0, None),
    ("transactions of 100 records: records/s", 1.0, None),
    ("heartbeating every 3 s", None, 1.0),
    ("rebalance of 100 members", None, 1.0),
    ("records/s in a cluster", 1.5, None),
    ("create 1,000 partitions", None, 1.0),
    ("records/s", 1.2, None),
    ("MB/s", 1.2, None),
]

# With one worker for each core: all cores must bring what one lacks, at no more processor time.
WORKERS_AIMS: Aims = [
    ("clients' share", None, None),
    ("over 1 connection(s)", None, None),
    ("connection(s): broker CPU", None, 1.0),
    ("connection(s)", 1.0, None),
    ("offset commits/s", 1.0, None),
    ("offset commit: broker CPU", None, 1.0),
    ("resident after start", None, 0.18),
]


class Figures(NamedTuple):
    """The rounds of one measurement of one broker."""

    cold: list[float]
    warming: list[float]
    warm: list[float]


class Figure(NamedTuple):
    """The median of one measurement; `kafka` is None where there is none."""

    name: str
    ottla: float | None
    kafka: float | None
    #: The least and the greatest of the warm rounds.
    ottla_spread: tuple[float, float] | None = None
    kafka_spread: tuple[float, float] | None = None
    cold_ratio: float | None = None
    #: Of several workers, where they were measured.
    workers: float | None = None
    workers_spread: tuple[float, float] | None = None


class Row(NamedTuple):
    """A figure as text."""

    name: str
    ottla: str
    kafka: str
    ratio: str
    cold: str
    aim: str
    workers: str = ""
    workers_ratio: str = ""
    workers_aim: str = ""


def verdict(name: str, value: float, aims: Aims = AIMS) -> str:
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
    if figure.ottla is not None and figure.kafka:
        ratio = figure.ottla / figure.kafka
        ratio_text = f"{ratio:.2f}"
        aim = verdict(figure.name, ratio)
    workers = workers_ratio = workers_aim = ""
    if figure.workers is not None:
        workers = with_spread(figure.workers, figure.workers_spread)
        if figure.kafka:
            ratio = figure.workers / figure.kafka
            workers_ratio = f"{ratio:.2f}"
            workers_aim = verdict(figure.name, ratio, WORKERS_AIMS)
    return Row(
        figure.name,
        with_spread(figure.ottla, figure.ottla_spread),
        with_spread(figure.kafka, figure.kafka_spread),
        ratio_text,
        "" if figure.cold_ratio is None else f"{figure.cold_ratio:.2f}",
        aim,
        workers,
        workers_ratio,
        workers_aim,
    )


def with_spread(value: float | None, spread: tuple[float, float] | None) -> str:
    if spread is None or spread[0] == spread[1]:
        return number(value)
    return f"{number(value)} ({number(spread[0])} to {number(spread[1])})"


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
        self._collected: dict[str, dict[str, Figures]] = {}
        self._profiles: dict[str, Profile] = {}
        self._baseline: dict[str, float] = {}
        self._date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        self.headline = machine
        if not with_kafka:
            self.headline += f"\n{self._without_kafka()}"

    def add(
        self, broker: str, figures: dict[str, float], *, is_warm: bool, is_cold: bool = False
    ) -> None:
        """One round of one broker."""
        for name, value in figures.items():
            of_broker = self._collected.setdefault(name, {}).setdefault(broker, Figures([], [], []))
            if is_warm:
                of_broker.warm.append(value)
            elif is_cold:
                of_broker.cold.append(value)
            else:
                of_broker.warming.append(value)

    def add_profile(self, line: str, profile: Profile) -> None:
        """Where the processor time of a line goes; written below the table."""
        self._profiles[line] = profile

    def rows(self) -> list[tuple[str, ...]]:
        """The cells below `_titles`."""
        found = []
        for figure in self._figures():
            row = row_of(figure)
            cells = tuple(row if self._measured(WORKERS) else row[:6])
            found.append(cells + self._beside_cells(figure) if self._measured(BESIDE) else cells)
        return found

    def _measured(self, broker: str) -> bool:
        return any(broker in brokers for brokers in self._collected.values())

    def _beside_cells(self, figure: Figure) -> tuple[str, str]:
        """The figure of the other checkout, and the ratio of this one's to it."""
        beside = self._collected[figure.name].get(BESIDE)
        median = _median(beside)
        ratio = f"{figure.ottla / median:.2f}" if figure.ottla is not None and median else ""
        return with_spread(median, _spread(beside)), ratio

    def print(self) -> None:
        table = Table(*self._titles())
        for row in self.rows():
            table.add_row(*row)
        Console(width=170).print(table)
        print(f"also in {self._path} and {self._path.with_suffix('.json')}")

    def write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{self._date}; {self._machine}; {self._describe()}", ""]
        if not self._with_kafka:
            lines += [self._without_kafka(), ""]
        titles = self._titles()
        lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows()]
        if self._profiles:
            lines += ["", table(self._profiles)]
        self._path.write_text("\n".join(lines) + "\n")
        rounds = {
            name: {broker: figures._asdict() for broker, figures in brokers.items()}
            for name, brokers in self._collected.items()
        }
        content = {"machine": self._machine, "date": self._date, "rounds": rounds}
        self._path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")

    def _titles(self) -> list[str]:
        titles = ["what", "Ottla", self._kafka_title(), "ratio", "cold ratio", "aim"]
        if self._measured(WORKERS):
            titles += ["Ottla, workers", "their ratio", "their aim"]
        if self._measured(BESIDE):
            titles += ["Ottla, other checkout", "ratio to it"]
        return titles

    def store_baseline(self) -> None:
        medians = {
            figure.name: figure.kafka for figure in self._figures() if figure.kafka is not None
        }
        content = {"machine": self._machine, "date": self._date, "medians": medians}
        BASELINE.write_text(json.dumps(content, indent=1) + "\n")

    def _describe(self) -> str:
        done = max(
            (len(each.warm) for values in self._collected.values() for each in values.values()),
            default=0,
        )
        return f"medians of {done} warm rounds (least to greatest), lengths times {self._scale:g}"

    def _figures(self) -> list[Figure]:
        found = []
        for name, values in self._collected.items():
            ottla, kafka = values.get("ottla"), values.get("kafka")
            kafka_median = _median(kafka)
            if not self._with_kafka:
                kafka_median = self._baseline.get(name)
            cold = None
            if ottla and kafka and ottla.cold and kafka.cold and kafka.cold[0]:
                cold = ottla.cold[0] / kafka.cold[0]
            workers = values.get(WORKERS)
            found.append(
                Figure(
                    name,
                    _median(ottla),
                    kafka_median,
                    _spread(ottla),
                    _spread(kafka),
                    cold,
                    _median(workers),
                    _spread(workers),
                )
            )
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


def _median(figures: Figures | None) -> float | None:
    return statistics.median(figures.warm) if figures and figures.warm else None


def _spread(figures: Figures | None) -> tuple[float, float] | None:
    return (min(figures.warm), max(figures.warm)) if figures and figures.warm else None
