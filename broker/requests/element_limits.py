"""How many elements the requests of each API may have: topics, partitions, names of all arrays."""

from __future__ import annotations

from ottla.broker.requests.request_parts import DIVISIBLE, MAX_UNDIVIDED_ELEMENTS
from ottla.protocol.registry import ApiKey

# What is handled in parts or in slices: with decoded request, response and its bytes about 20 MB,
# and few enough objects for a run of the garbage collector that stays below 50 ms.
MAX_ELEMENTS = 50_000
# Records for more partitions than the megabyte of a Java producer's `max.request.size` has batches,
# and their transaction. They are checked in one turn, which takes 2 us each, and then appended in
# several ones.
MAX_PRODUCE_ELEMENTS = 15_000
# All partitions of a member of a consumer group, or all members of a classic group, which cannot be
# divided: handled in one turn they take 1.5 us each at the most.
MAX_MEMBER_ELEMENTS = 20_000
# Controllers send the state of all partitions of a cluster, with ten elements for each; a leader
# that a follower left, the ISRs of all its partitions.
MAX_CONTROL_ELEMENTS = 5_000_000

PARTITION_APIS = frozenset((ApiKey.PRODUCE, ApiKey.FETCH))
_PRODUCE_APIS = frozenset((ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN))
_MEMBER_APIS = frozenset((ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SYNC_GROUP))
# What Kafka handles as a whole, and clients send about all topics or partitions that they know. The
# handlers work in slices.
_LARGE_APIS = frozenset(
    (
        ApiKey.FETCH,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
    )
)
# Of controllers and other brokers, about all partitions of a broker.
CONTROL_APIS = frozenset(
    (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.ALTER_PARTITION,
        ApiKey.WRITE_TXN_MARKERS,
    )
)


def max_elements(api_key: int) -> int:
    """The most elements that a request may have."""
    if api_key in CONTROL_APIS:
        return MAX_CONTROL_ELEMENTS
    if api_key in _PRODUCE_APIS:
        return MAX_PRODUCE_ELEMENTS
    if api_key in _MEMBER_APIS:
        return MAX_MEMBER_ELEMENTS
    is_large = api_key in DIVISIBLE or api_key in _LARGE_APIS
    return MAX_ELEMENTS if is_large else MAX_UNDIVIDED_ELEMENTS
