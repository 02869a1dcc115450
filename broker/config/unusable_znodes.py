"""Znodes that protect something and cannot be used: garbage, a newer version, no right to read.

What such a znode covers is denied until it is repaired; a topic keeps its records. Its reader
reports it here, for the fault `security-znode-unusable`, with a call that reads it again: a repair
by hand is not announced.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ottla.controller.tree.store import StoreError

logger = logging.getLogger("ottla.security")

# Znodes whose texts are kept, for faults. The others are denied and read again, too; the log names
# all of them.
MAX_REMEMBERED = 1_000
# Znodes that are read again at a time, every few seconds, so that ZooKeeper is not loaded.
READ_AT_ONCE = 100


class UnusableZnode(NamedTuple):
    """`problem` names the path; `effect` names the denied operations."""

    problem: str
    effect: str


class UnusableZnodes:
    """The unusable znodes of one broker, by path. Loop only."""

    def __init__(self) -> None:
        #: The first MAX_REMEMBERED of them.
        self.found: dict[str, UnusableZnode] = {}
        # All of them, the ones that were read least recently first. The parts that report them
        # keep an entry for each anyway: what it denies.
        self._readers: dict[str, Callable[[], Awaitable[object]]] = {}

    @property
    def count(self) -> int:
        """How many cannot be used, also of those that are not in `found`."""
        return len(self._readers)

    def report(
        self, path: str, problem: str, effect: str, read_again: Callable[[], Awaitable[object]]
    ) -> None:
        """A znode cannot be used. `read_again` calls this, or `repaired`."""
        found = UnusableZnode(problem, effect)
        if self.found.get(path) == found:
            return
        if path in self.found or path not in self._readers:
            logger.error("%s; %s until it is repaired", problem, effect)
        self._readers[path] = read_again
        if path in self.found or len(self.found) < MAX_REMEMBERED:
            self.found[path] = found

    def repaired(self, path: str) -> None:
        """A znode can be used, or is gone."""
        if self._readers.pop(path, None) is not None:
            self.found.pop(path, None)
            logger.info("%s can be used again", path)

    async def look(self) -> None:
        """Reads znodes again, each after at most `count / READ_AT_ONCE` calls."""
        for path in list(self._readers)[:READ_AT_ONCE]:
            read_again = self._readers.pop(path, None)
            if read_again is None:  # repaired meanwhile
                continue
            self._readers[path] = read_again  # the last one now
            try:
                await read_again()
            except StoreError as error:
                logger.info("Failed to read %s again: %s", path, error)
                return
