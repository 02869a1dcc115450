"""`make bench-curves`: throughput, processor time, response time and memory over growing load.

Each curve changes one number: connections, partitions, groups, connections of a load beside a
small client (saturation), or gigabytes in a log. At each point both brokers are warmed with its
load, then measured in alternation, three short rounds each; then the topics are deleted. A point of
`gigabytes` is one round. The medians are printed as Markdown, a table a curve.

Each round is kept on disk at once. After 25 minutes no further point begins:

    make bench-curves
    make bench-curves ARGUMENTS=--missing                   go on where a run was stopped
    make bench-curves ARGUMENTS="--missing --page"          and write docs/performance.md
    make bench-curves ARGUMENTS="--only groups --without-kafka"
    make bench-curves ARGUMENTS=--quick                     the small end of each curve
"""

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import KafkaException

from benchmarks import clients, machine, targets
from benchmarks.bench import CACHE, MAX_WARM_UPS, agree, delete_written, touch_memory
from benchmarks.curves import CURVES, Curve
from benchmarks.kept import Figures, Kept
from benchmarks.page import PERFORMANCE, replace_block
from benchmarks.report import number
from tests.doubles import apache_kafka

# Rounds that are not counted. In the first point of a curve they go on until two agree: a JVM
# compiles what is new in the load.
LEAST_WARM_UPS = 1
# Before each round, of what `make bench` touches: more than it writes. The topics of a point stay
# until it is complete, so that later rounds would get new memory, at twice the processor time.
TOUCHED_SHARE = 0.25
# A log of the curve of sizes is deleted before the other broker writes its own.
ROOM_OF_A_LOG = 1.5


def line_of(curve: Curve, point: int) -> str:
    return f"{curve.name} {point}"


def points(curve: Curve, arguments: argparse.Namespace, folder: Path) -> list[int]:
    """Without log sizes for which the disk has no room, or that are not wanted."""
    wanted = list(curve.points[: curve.short] if arguments.quick else curve.points)
    if curve.name == "gigabytes":
        room = int(shutil.disk_usage(folder).free / 1e9 / ROOM_OF_A_LOG)
        wanted = [each for each in wanted if each <= min(arguments.gigabytes, room)]
    return wanted


def missing(
    curve: Curve, wanted: list[int], names: list[str], rounds: int, kept: Kept
) -> list[int]:
    """The points that have not all rounds of each of these brokers."""
    needed = 1 if curve.is_costly else rounds
    return [
        point
        for point in wanted
        if any(kept.count(line_of(curve, point), name) < needed for name in names)
    ]


def table(curve: Curve, kept: Kept) -> str:
    """The medians of the points that were measured; an empty text if there are none."""
    measured = [point for point in curve.points if line_of(curve, point) in kept.lines()]
    medians = {
        point: {name: kept.medians(line_of(curve, point), name) for name in ("ottla", "kafka")}
        for point in measured
    }
    present = [name for name in ("ottla", "kafka") if any(row[name] for row in medians.values())]
    columns = list(dict.fromkeys(c for row in medians.values() for n in present for c in row[n]))
    if not columns:
        return ""
    head = [curve.name, *(f"{name}: {column}" for column in columns for name in present)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for point, row in medians.items():
        cells = [number(row[name].get(column)) for column in columns for name in present]
        lines.append(f"| {' | '.join([f'{point:,}', *cells])} |")
    return "\n".join(lines)


def precision(kept: Kept) -> str:
    """How far the rounds of one point are apart, the median over all rates."""
    apart = [
        (most - least) / kept.medians(line, name)[figure]
        for line in kept.lines()
        for name in ("ottla", "kafka")
        for figure, (least, most) in kept.spreads(line, name).items()
        if figure.endswith("/s") and kept.count(line, name) > 1 and most > 0
    ]
    if not apart:
        return ""
    return (
        f"The least and the greatest rate of a point are apart by {statistics.median(apart):.0%} "
        f"of it in the median, {max(apart):.0%} at most."
    )


def text_of(kept: Kept) -> str:
    """The runs, the precision and the tables as Markdown."""
    tables = [table(curve, kept) for curve in CURVES]
    texts = ["; ".join(kept.runs) + ".", precision(kept), *tables]
    return "\n\n".join(text for text in texts if text)


def measure(
    curve: Curve,
    point: int,
    most_warm_ups: int,
    contestants: list[targets.Target],
    arguments: argparse.Namespace,
    kept: Kept,
) -> None:
    """Both brokers at one point, in alternation. A point that fails is reported and left out."""
    rounds = 1 if curve.is_costly else arguments.rounds
    turn = counted = 0
    earlier: dict[str, Figures] = {}
    while counted < rounds:
        found: dict[str, Figures] = {}
        for target in contestants if turn % 2 else contestants[::-1]:
            if not curve.is_costly:
                touch_memory(target.directory, TOUCHED_SHARE)
            try:
                found[target.name] = curve.measure(target, point, arguments.seconds)
            except Exception:
                print(f"{target.name} FAILED\n{traceback.format_exc()}", file=sys.stderr)
                return
            if curve.is_costly:
                delete([target])
        is_warm = (
            counted > 0
            or turn >= most_warm_ups
            or (turn >= LEAST_WARM_UPS and all(agree(earlier.get(n, {}), found[n]) for n in found))
        )
        if is_warm:
            counted += 1
            for name, figures in found.items():
                if kept.count(line_of(curve, point), name) < rounds:
                    kept.add(line_of(curve, point), name, figures)
        earlier = found
        turn += 1


def delete(contestants: list[targets.Target]) -> None:
    """The topics of a point. A broker that takes too long does not end the run."""
    try:
        delete_written(contestants)
    except (KafkaException, TimeoutError) as error:
        print(f"topics are not deleted: {error}", file=sys.stderr)


def start(folder: Path, with_kafka: bool, stack: ExitStack) -> list[targets.Target]:
    contestants: list[targets.Target] = [targets.Ottla(folder / "ottla", {})]
    if with_kafka:
        zookeeper = stack.enter_context(apache_kafka.start_zookeeper(folder))
        contestants.append(targets.Kafka(folder / "kafka", {}, zookeeper))
    for target in contestants:
        stack.callback(target.stop)
        target.launch()
        clients.first_produce_s(target.bootstrap, target.started_at)
    return contestants


def run(arguments: argparse.Namespace, folder: Path, kept: Kept) -> None:
    deadline = time.perf_counter() + arguments.minutes * 60
    with_kafka = apache_kafka.is_available() and not arguments.without_kafka
    names = ["ottla", "kafka"] if with_kafka else ["ottla"]
    parts = arguments.only.split(",")
    wanted = {
        curve.name: missing(curve, points(curve, arguments, folder), names, arguments.rounds, kept)
        for curve in CURVES
        if any(part in curve.name for part in parts)
    }
    if not any(wanted.values()):
        return
    with ExitStack() as stack:
        contestants = start(folder, with_kafka, stack)
        for curve in CURVES:
            for number_of, point in enumerate(wanted.get(curve.name, [])):
                if time.perf_counter() > deadline:
                    print(f"{line_of(curve, point)} and more are missing: the time has ended")
                    return
                begun = time.perf_counter()
                most = LEAST_WARM_UPS if number_of else MAX_WARM_UPS
                most_warm_ups = 0 if curve.is_costly else most
                measure(curve, point, most_warm_ups, contestants, arguments, kept)
                delete(contestants)
                taken = time.perf_counter() - begun
                print(f"{line_of(curve, point)}: {taken:.0f} s", file=sys.stderr, flush=True)
                arguments.output.write_text(text_of(kept) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small end of each curve")
    parser.add_argument("--only", default="", help="only these curves: A,B")
    parser.add_argument("--missing", action="store_true", help="keep what was measured before")
    parser.add_argument("--seconds", type=float, default=2.5, help="length of each round")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds of each point")
    parser.add_argument("--minutes", type=float, default=25.0, help="begin no point after that")
    parser.add_argument("--gigabytes", type=int, default=10, help="the largest log")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--output", type=Path, default=CACHE / "curves.md")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md as well")
    arguments = parser.parse_args()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    CACHE.mkdir(parents=True, exist_ok=True)
    machine.end_on_sigterm()
    kept = Kept(arguments.output.with_suffix(".json"), continues=arguments.missing)
    kept.begin(machine.describe())
    folder = Path(tempfile.mkdtemp(dir=CACHE))
    try:
        run(arguments, folder, kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = text_of(kept)
    print(text)
    if arguments.page:
        replace_block(PERFORMANCE, "growing load", text)


if __name__ == "__main__":
    main()
