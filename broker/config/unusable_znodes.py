"""Znodes that protect something and cannot be used: garbage, a newer version, no right to read.

What such a znode covers is denied until it is repaired. Its reader reports it here, for the fault
`security-znode-unusable`, with a call that reads it again: a repair by hand is not announced.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ottla.controller.tree.store import StoreError

logger = logging.getLogger("ottla.security")

# Each one is a fault and a read every few seconds. Beyond it what they cover is denied just as
# well; the log names all of them.
MAX_REMEMBERED = 1_000


class UnusableZnode(NamedTuple):
    """`problem` names the path; `effect` is what is denied."""

    problem: str
    effect: str


class UnusableZnodes:
    """Those of one broker, by path. Loop only."""

    def __init__(self) -> None:
        self.found: dict[str, UnusableZnode] = {}
        self._readers: dict[str, Callable[[], Awaitable[object]]] = {}

    def report(
        self, path: str, problem: str, effect: str, read_again: Callable[[], Awaitable[object]]
    ) -> None:
        """A znode cannot be used. `read_again` calls this, or `repaired`."""
        found = UnusableZnode(problem, effect)
        if self.found.get(path) == found:
            return
        logger.error("%s; %s until it is repaired", problem, effect)
        if path in self.found or len(self.found) < MAX_REMEMBERED:
            self.found[path] = found
            self._readers[path] = read_again

    def repaired(self, path: str) -> None:
        """A znode can be used, or is gone."""
        if self.found.pop(path, None) is not None:
            del self._readers[path]
            logger.info("%s can be used again", path)

    async def look(self) -> None:
        """Reads the znodes again."""
        for path, read_again in list(self._readers.items()):
            try:
                await read_again()
            except StoreError as error:
                logger.info("Failed to read %s again: %s", path, error)
                return
