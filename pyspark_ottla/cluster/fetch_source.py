"""Where a fetch goes to."""

from __future__ import annotations

from typing import NamedTuple


class FetchSource(NamedTuple):
    """The replica on a broker, or the leader if `node_id` is None.

    With `names_rack` the leader may return the id of a replica instead of records (KIP-392). With a
    topic id, a broker that knows another topic of that name returns UNKNOWN_TOPIC_ID (KIP-516).
    """

    node_id: int | None = None
    names_rack: bool = True
    topic_id: str | None = None


# The leader itself, whichever replica is near: for a look at a few bytes.
LEADER = FetchSource(names_rack=False)
