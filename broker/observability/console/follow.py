"""Records as they arrive: each request of a page that follows waits until there are some.

A page that follows has a lease while it does. It requests one after the other, each from where the
last one ended; nothing is kept for it in between.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.access import Refused
from ottla.broker.observability.console.browse import LOOK_SECONDS
from ottla.broker.observability.console.cluster_client import LATEST, list_offsets
from ottla.broker.observability.console.parameters import InvalidParameter
from ottla.broker.security.authorization.acl_types import Operation, ResourceType

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.browse import Browser, Query
    from ottla.broker.observability.console.cluster_client import ClusterClient

# Pages that follow at the same time. Each asks the leaders for end offsets twice a second.
MAX_FOLLOWERS = 4
# A page that does not ask for so long is gone without a word, as when a phone lost its network.
IDLE_SECONDS = 15.0
# How long one request waits, and how often it looks. With a look at records that takes its time
# it stays within the deadline of the HTTP port.
WAIT_SECONDS = 2.5
INTERVAL_SECONDS = 0.5
# Characters of the name that a page gives itself.
MAX_NAME = 64


class Followers:
    """Loop only."""

    def __init__(self, client: ClusterClient, browser: Browser) -> None:
        self._client = client
        self._browser = browser
        self._seen: dict[str, float] = {}  # when each page asked last

    async def follow(
        self, name: str, query: Query, positions: dict[int, int], viewer: Viewer
    ) -> bytes:
        """The look at the records from `positions` on, as soon as there is one; after a while
        without, an empty one. Raises Refused when too many pages follow."""
        viewer.require(Operation.READ, ResourceType.TOPIC, query.topic)
        self._admit(name)
        deadline = monotonic() + WAIT_SECONDS
        last = monotonic() + LOOK_SECONDS
        partitions = self._browser.partitions(query)
        while True:
            ends = await list_offsets(
                self._client, viewer, partitions, LATEST, seconds=WAIT_SECONDS
            )
            arrived = any(end != positions.get(each.partition) for each, end in ends.found.items())
            if arrived or ends.problems or monotonic() >= deadline:
                break
            await asyncio.sleep(INTERVAL_SECONDS)
        found = await self._browser.read(query, viewer, positions, last)
        if name in self._seen:  # else the page has left meanwhile
            self._seen[name] = monotonic()
        return found

    async def leave(self, name: str) -> dict[str, Any]:
        """Another page may have the place of one that has left."""
        self._seen.pop(name, None)
        return {}

    def _admit(self, name: str) -> None:
        if not 0 < len(name) <= MAX_NAME:
            raise InvalidParameter(f"follower is not a name of 1 to {MAX_NAME} characters")
        now = monotonic()
        self._seen = {each: at for each, at in self._seen.items() if now - at < IDLE_SECONDS}
        if name not in self._seen and len(self._seen) >= MAX_FOLLOWERS:
            raise Refused(
                "429 Too Many Requests",
                f"{MAX_FOLLOWERS} pages follow records on this broker already; stop one of them, "
                "or use the console of another broker",
            )
        self._seen[name] = now


def positions_of(text: str, most: int) -> dict[int, int]:
    """Offsets by partition, of "0:17,1:3". Raises InvalidParameter."""
    found = {}
    for each in text.split(",")[: most + 1]:
        partition, _, offset = each.partition(":")
        if not all(part.isascii() and part.isdigit() for part in (partition, offset)):
            raise InvalidParameter("at is not a list of partition:offset")
        if len(partition) > 10 or len(offset) > 18:
            raise InvalidParameter("at has a number that is too large")
        found[int(partition)] = int(offset)
    if len(found) > most:
        raise InvalidParameter(f"at has more than {most} partitions")
    return found
