"""Print figures as a table with the ratio to Kafka and whether the aim is met."""

from typing import NamedTuple

from rich.console import Console
from rich.table import Table

# What the project aims at, as ratios to Apache Kafka 3.9.1 (name part, at least, at most).
AIMS: list[tuple[str, float | None, float | None]] = [
    ("CPU s per GB", None, 0.6),
    ("tiny requests/s", 1.2, None),
    ("p50: ms", None, 0.5),
    ("p99: ms", None, 0.5),
    ("start to first produce", None, 0.15),
    ("resident", None, 0.15),
    ("records/s", 1.2, None),
    ("MB/s", 1.2, None),
]


class Figure(NamedTuple):
    """The median of one measurement; `kafka` is None where Kafka was not measured."""

    name: str
    ottla: float
    kafka: float | None


def verdict(figure: Figure) -> tuple[str, str]:
    if figure.kafka is None or figure.kafka == 0:
        return "", ""
    ratio = figure.ottla / figure.kafka
    for part, least, most in AIMS:
        if part in figure.name:
            met = ratio >= least if least is not None else ratio <= (most or 0)
            aim = f">= {least}" if least is not None else f"<= {most}"
            return f"{ratio:.2f}", f"{aim} {'met' if met else 'missed'}"
    return f"{ratio:.2f}", ""


def number(value: float | None) -> str:
    if value is None:
        return "not measured"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def print_table(figures: list[Figure]) -> None:
    table = Table("what", "Ottla", "Kafka 3.9.1", "ratio", "aim")
    for figure in figures:
        ratio, aim = verdict(figure)
        table.add_row(figure.name, number(figure.ottla), number(figure.kafka), ratio, aim)
    Console(width=130).print(table)
