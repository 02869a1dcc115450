"""The samples of `bench_spark` as a table of medians, ratios and aims."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from rich.console import Console

Sample = dict[str, float | str]

# What the API moved at most where it was first measured, on a machine with nothing else to do.
API_CEILING_ROWS_S = 450_000

# Beside our own at-least-once, which stands in the column of Spark's connector.
EXACTLY_ONCE = "write 1 KiB, exactly once beside at-least-once of Ottla"

# (beginning of the name, figure, at least, at most): the aims, as ratios to Spark's own connector.
AIMS: tuple[tuple[str, str, float | None, float | None], ...] = (
    ("drain 1 KiB, 1 partition", "rows/s", 1.3, None),
    ("drain 1 KiB, 2 partitions", "rows/s", 2.0, None),
    ("drain 100 B", "rows/s", 2.5, None),
    ("drain", "CPU s/GB", None, 1.0),
    ("mapInArrow", "rows/s", 1.5, None),
    ("trigger of 10 rows, median", "s", None, 1.2),
    ("trigger of 10 rows, start and end", "s", None, 3.0),
    ("AvailableNow, 10 triggers", "rows/s", 1.0, None),
    ("write 10 rows, 200 shuffle partitions", "s", None, 3.4),
    ("count of 300 partitions", "s", None, 0.4),
    ("write 1 KiB, acks=all", "rows/s", 2.0, None),
    (EXACTLY_ONCE, "rows/s", 0.9, None),
    ("cold start, jars from Ivy", "s", None, 0.5),
    ("peak proportional memory", "MB", None, 1.2),
)


def number_of(sample: Sample, key: str) -> float:
    return float(sample[key])


# What is shown of a sample, by the key that it must have.
FIGURES: tuple[tuple[str, str, Callable[[Sample], float]], ...] = (
    ("rate", "rows/s", lambda s: number_of(s, "rate")),
    ("rate", "MB/s", lambda s: number_of(s, "rate") * number_of(s, "value_bytes") / 1e6),
    (
        "processor_us",
        "CPU s/GB",
        lambda s: number_of(s, "processor_us") * 1e3 / number_of(s, "value_bytes"),
    ),
    ("seconds", "s", lambda s: number_of(s, "seconds")),
    ("megabytes", "MB", lambda s: number_of(s, "megabytes")),
)

Medians = dict[tuple[str, str], float]


def medians(samples: list[Sample]) -> Medians:
    """The median of every figure, by the measurement's name and the unit."""
    gathered: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        for key, unit, value in FIGURES:
            if key in sample:
                gathered.setdefault((str(sample["name"]), unit), []).append(value(sample))
    return {key: median(values) for key, values in gathered.items()}


def verdict(name: str, unit: str, ratio: float | None) -> str:
    for beginning, figure, least, most in AIMS:
        if ratio is not None and name.startswith(beginning) and unit == figure:
            met = ratio >= least if least is not None else ratio <= (most or 0)
            aim = f">= {least}" if least is not None else f"<= {most}"
            return f"{aim} {'met' if met else 'missed'}"
    return ""


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def print_figures(console: Console, samples: dict[str, list[Sample]]) -> None:
    ours, theirs = medians(samples.get("ottla", [])), medians(samples.get("kafka", []))
    rows = [(name, unit, value, theirs.get((name, unit))) for (name, unit), value in ours.items()]
    by_ivy = medians(samples.get("kafka by Ivy", [])).get(("cold start", "s"))
    own = ours.get(("cold start", "s"))
    if own is not None:
        rows.insert(2, ("cold start, jars from Ivy", "s", own, by_ivy))
    once = ours.get(("write 1 KiB, exactly once", "rows/s"))
    if once is not None:
        least = ours.get(("write 1 KiB, acks=all", "rows/s"))
        place = [row[0] for row in rows].index("write 1 KiB, exactly once")
        rows.insert(place, (EXACTLY_ONCE, "rows/s", once, least))
    # As in docs/performance.md, and without a terminal's width.
    print("| what (medians) | unit | ottla | Spark's own | ratio | aim |", flush=True)
    print("|---|---|---|---|---|---|")
    last = ""
    for name, unit, value, other in rows:
        ratio = value / other if other else None
        cells = [
            "the same" if name == last else name,
            unit,
            shown(value),
            shown(other),
            "" if ratio is None else f"{ratio:.2f}",
            verdict(name, unit, ratio),
        ]
        print(f"| {' | '.join(cells)} |")
        last = name
    print(flush=True)
    for connector, some in samples.items():
        left_out = sorted({str(sample["name"]) for sample in some if "left_out" in sample})
        if left_out:
            console.print(f"{connector}: no time was left for {', '.join(left_out)}")
    reached = ours.get(("drain 1 KiB, 1 partition", "rows/s"))
    ceiling = ours.get(("ceiling of the API, 1 KiB, 1 task", "rows/s"))
    if reached is not None and ceiling is not None:
        console.print(
            f"one task reaches {reached / ceiling:.0%} of what the API moves here with rows that "
            f"cost nothing, and {reached / API_CEILING_ROWS_S:.0%} of {API_CEILING_ROWS_S:,} rows/s"
        )
