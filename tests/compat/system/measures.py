"""What a run shows: pauses of clients, and what is lost, doubled or out of order.

Pure functions over times in milliseconds and values as they lie in partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


def longest_gap_ms(times: Iterable[int], begin: int, end: int) -> int:
    """The longest time between `begin` and `end` in which nothing came."""
    inside = sorted(each for each in times if begin < each < end)
    return max(after - before for before, after in pairwise([begin, *inside, end]))


def longest_pause_ms(times: Mapping[int, Sequence[int]], begin: int, end: int) -> int:
    """The longest pause of any partition."""
    return max((longest_gap_ms(each, begin, end) for each in times.values()), default=end - begin)


@dataclass
class Findings:
    """Counts of what must not be, with the first examples of each."""

    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, found: Sequence[object], where: str) -> None:
        setattr(self, kind, getattr(self, kind) + len(found))
        if found:
            self.examples.append(f"{where}: {len(found)} {kind}, first {found[:5]}")

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.disordered)


def check_log(
    findings: Findings,
    where: str,
    acknowledged: Mapping[int, Mapping[int, int]],
    kept: Mapping[int, Sequence[int]],
) -> None:
    """An idempotent producer wrote ascending numbers: each that was acknowledged (partition:
    number: offset) is in its partition, once, and numbers ascend."""
    for partition, numbers in kept.items():
        name = f"{where}-{partition}"
        counts = Counter(numbers)
        findings.add("doubled", [each for each, count in counts.items() if count > 1], name)
        promised = acknowledged.get(partition, {})
        findings.add("lost", [each for each in promised if each not in counts], name)
        wrong = [(one, two) for one, two in pairwise(numbers) if one > two]
        findings.add("disordered", wrong, name)


def check_copy(
    findings: Findings, where: str, source: Sequence[int], copy: Sequence[int], position: int
) -> None:
    """A transactional copy is the beginning of its source, as far as its committed position."""
    counts = Counter(copy)
    findings.add("doubled", [each for each, count in counts.items() if count > 1], where)
    findings.add("lost", [each for each in source[:position] if each not in counts], where)
    findings.add("doubled", sorted(set(counts).difference(source[:position])), where)
    findings.add("disordered", [pair for pair in pairwise(copy) if pair[0] > pair[1]], where)


def check_counts(findings: Findings, where: str, counts: Sequence[int], expected: int) -> None:
    """The counts of one key are 1, 2, 3, ... to the number of its records."""
    seen = Counter(counts)
    findings.add("doubled", [each for each, count in seen.items() if count > 1], where)
    findings.add("lost", [each for each in range(1, expected + 1) if each not in seen], where)
    findings.add("doubled", [each for each in seen if each > expected], where)
    findings.add("disordered", [pair for pair in pairwise(counts) if pair[0] > pair[1]], where)


@dataclass
class Deliveries:
    """The offsets that the members of a group were given, as ranges in the order of their times."""

    ranges: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, partition: int, first: int, last: int) -> None:
        self.ranges.setdefault(partition, []).append((first, last))

    def missing(self, partition: int, end: int) -> list[int]:
        """The offsets below `end` that no member was given."""
        given: set[int] = set()
        for first, last in self.ranges.get(partition, ()):
            given.update(range(first, last + 1))
        return [offset for offset in range(end) if offset not in given]

    def repeated(self) -> int:
        """How many deliveries were not the first of their record."""
        total = 0
        for ranges in self.ranges.values():
            given = {offset for first, last in ranges for offset in range(first, last + 1)}
            total += sum(last - first + 1 for first, last in ranges) - len(given)
        return total
