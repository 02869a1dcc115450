"""A program of the ecosystem, the script that tries it, and what a run of the script gave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.compat.ecosystem.clusters import KAFKA, Cluster, start_nodes


@dataclass(frozen=True)
class Check:
    """One thing that was verified; `reason` is empty when it passed."""

    name: str
    passed: bool
    reason: str = ""


class Script:
    """What a program's script gets: a broker of the kind that is tested, and a place for files."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.checks: list[Check] = []
        self._clusters = 0

    def start_cluster(self, count: int = 1, **settings: object) -> AbstractContextManager[Cluster]:
        """Brokers of the kind that is tested."""
        return start_nodes(self.kind, self._place(), count, **settings)

    def start_kafka(self, **settings: object) -> AbstractContextManager[Cluster]:
        """A broker of Apache Kafka as the other end, whatever is tested."""
        return start_nodes(KAFKA, self._place(), **settings)

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Records whether the block ends without an exception, and raises it again."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            self.checks.append(Check(name, False, _reason(error)))
            print(f"  no:  {name}: {_reason(error)}", flush=True)
            raise
        self.checks.append(Check(name, True))
        print(f"  yes: {name} ({time.monotonic() - began:.0f} s)", flush=True)

    def _place(self) -> Path:
        self._clusters += 1
        place = self.directory / f"cluster-{self._clusters}"
        place.mkdir()
        return place


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


@dataclass(frozen=True)
class Program:
    """One program at one version. `needs` are commands that the machine must have."""

    name: str
    title: str
    version: str
    needs: tuple[str, ...]
    run: Callable[[Script], None]
    #: What a reader of the results has to know, in sentences.
    notes: tuple[str, ...] = field(default=())
