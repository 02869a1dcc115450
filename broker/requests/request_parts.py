"""The elements of requests: how many each API may have, and how to divide requests into parts.

A request of a hundred thousand topics is handled as many small ones, whose responses are merged
into one, so that other clients get their turn in between. Items are divided here only where Kafka
handles each by itself. Where a request is checked as a whole, as for items that occur twice, equal
items stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from operator import attrgetter
from typing import Any, NamedTuple

from ottla.protocol.message import Message
from ottla.protocol.registry import ApiKey

#: The elements of one part. A denied topic costs about 25 us, a described one some more: a part
#: takes one or two milliseconds, well below the 50 ms that count as a stall.
PART_ELEMENTS = 64
# What cannot be divided takes at most this: with some microseconds for each element 30 ms.
MAX_UNDIVIDED_ELEMENTS = 5000


class Items(NamedTuple):
    """A list of a request, and the list of the response that has a row for each item."""

    request_field: str
    response_field: str
    #: The list in each item that can be divided as well, and that of its row.
    inner: Items | None = None
    #: What distinguishes items, where equal items are one (`each` False) or an error.
    key: Callable[[Any], object] | None = None
    #: The elements of lists in an item that is not divided.
    weigh: Callable[[Any], int] | None = None
    #: Equal items get a row each. Of more than two, two stay: the others change nothing.
    each: bool = True


def _itself(item: Any) -> Any:
    return item


def _weigh_configs(item: Any) -> int:
    return len(item.configs)


def _weigh_keys(item: Any) -> int:
    return len(item.configuration_keys or ())


def _weigh_assignments(item: Any) -> int:
    weight = 0
    for each in item.assignments or ():
        weight += 1 + len(each.broker_ids)
        if weight > MAX_UNDIVIDED_ELEMENTS:
            break
    return weight


def _weigh_topic(item: Any) -> int:
    return _weigh_assignments(item) + _weigh_configs(item)


_NAME = attrgetter("name")
_RESOURCE = attrgetter("resource_type", "resource_name")


def _topics_of(inner_request: str, inner_response: str = "partitions") -> Items:
    return Items("topics", "topics", Items(inner_request, inner_response))


_TOPICS = _topics_of("partitions")
_INDEXES = _topics_of("partition_indexes")

#: By API key; several where the list depends on the version. At most one is not empty.
DIVISIBLE: dict[int, tuple[Items, ...]] = {
    ApiKey.METADATA: (Items("topics", "topics", key=attrgetter("name", "topic_id"), each=False),),
    ApiKey.LIST_OFFSETS: (_TOPICS,),
    ApiKey.OFFSET_COMMIT: (_TOPICS,),
    ApiKey.TXN_OFFSET_COMMIT: (_TOPICS,),
    ApiKey.OFFSET_DELETE: (_TOPICS,),
    ApiKey.DELETE_RECORDS: (_TOPICS,),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_TOPICS,),
    ApiKey.DESCRIBE_PRODUCERS: (_INDEXES,),
    ApiKey.OFFSET_FETCH: (_INDEXES, Items("groups", "groups", _INDEXES)),
    ApiKey.FIND_COORDINATOR: (Items("coordinator_keys", "coordinators"),),
    ApiKey.DESCRIBE_GROUPS: (Items("groups", "groups", key=_itself),),
    ApiKey.DELETE_GROUPS: (Items("groups_names", "results", key=_itself, each=False),),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (Items("group_ids", "groups"),),
    ApiKey.DESCRIBE_TRANSACTIONS: (Items("transactional_ids", "transaction_states"),),
    ApiKey.DESCRIBE_CONFIGS: (Items("resources", "results", weigh=_weigh_keys),),
    ApiKey.ALTER_CONFIGS: (Items("resources", "responses", key=_RESOURCE, weigh=_weigh_configs),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Items("resources", "responses", key=_RESOURCE, weigh=_weigh_configs),
    ),
    ApiKey.CREATE_TOPICS: (Items("topics", "topics", key=_NAME, weigh=_weigh_topic),),
    ApiKey.CREATE_PARTITIONS: (Items("topics", "results", key=_NAME, weigh=_weigh_assignments),),
    ApiKey.DELETE_TOPICS: (
        Items("topic_names", "responses", key=_itself),
        Items("topics", "responses", key=attrgetter("name", "topic_id")),
    ),
}


def items_of(request: Message) -> Items | None:
    """Return how this request is divided; None if it has to be handled whole."""
    for items in DIVISIBLE.get(request.API_KEY, ()):
        if getattr(request, items.request_field):
            return items
    return None


class Part(NamedTuple):
    """A request with some of the items of another one, at least one."""

    request: Message
    #: Where it continues the part before: 0 for new items, 1 for more of the last item, 2 for more
    #: of what that item ended with.
    depth: int
    #: It is one item with more elements than are handled in one turn.
    is_too_long: bool


def parts_of(request: Message, items: Items) -> Iterator[Part | None]:
    """The parts of a request, in the order of its items. None stands wherever the search for the
    next part may pause."""
    for found in _divide(getattr(request, items.request_field), items):
        if found is None:
            yield None
            continue
        chosen, depth, is_too_long = found
        part = copy(request)
        setattr(part, items.request_field, chosen)
        yield Part(part, depth, is_too_long)


# Items, the depth at which they continue those before, whether they are too long.
_Found = tuple[list[Any], int, bool]


def _divide(found: list[Any], items: Items) -> Iterator[_Found | None]:
    chosen: list[Any] = []
    weight = 0
    inner = items.inner
    for group in _groups(found, items):
        if group is None:
            yield None
            continue
        cost = sum(_weight(item, items) for item in group)
        if weight + cost > PART_ELEMENTS and chosen:
            yield chosen, 0, False
            chosen, weight = [], 0
        if cost > PART_ELEMENTS and inner is not None and len(group) == 1:
            yield from _divide_item(group[0], inner)
        elif cost > MAX_UNDIVIDED_ELEMENTS:
            yield group, 0, True
        else:
            chosen += group
            weight += cost
    if chosen:
        yield chosen, 0, False


def _divide_item(item: Any, inner: Items) -> Iterator[_Found | None]:
    is_first = True
    for found in _divide(getattr(item, inner.request_field), inner):
        if found is None:
            yield None
            continue
        rows, depth, is_too_long = found
        part = copy(item)
        setattr(part, inner.request_field, rows)
        yield [part], 0 if is_first else depth + 1, is_too_long
        is_first = False


def _groups(found: list[Any], items: Items) -> Iterator[list[Any] | None]:
    """Items that must stay together. None stands wherever the search may pause."""
    key = items.key
    if key is None:
        for item in found:
            yield [item]
        return
    kept = 2 if items.each else 1
    groups: dict[object, list[Any]] = {}
    for item in found:
        group = groups.setdefault(key(item), [])
        if len(group) < kept:
            group.append(item)
        yield None
    yield from groups.values()


def _weight(item: Any, items: Items) -> int:
    """The elements of an item; where there are too many for a part, some number above that."""
    if items.weigh is not None:
        return 1 + items.weigh(item)
    inner = items.inner
    if inner is None:
        return 1
    rows = getattr(item, inner.request_field)
    if not rows:
        return 1
    weight = 1 + len(rows)
    if weight > PART_ELEMENTS or (inner.inner is None and inner.weigh is None):
        return weight
    return 1 + sum(_weight(row, inner) for row in rows)


def merge(response: Any, part: Any, items: Items, depth: int) -> None:
    """Add the response to a part to that of the parts before it."""
    if getattr(part, "error_code", 0) and not response.error_code:
        response.error_code = part.error_code
    _merge_rows(response, part, items, depth)


def _merge_rows(target: Any, source: Any, items: Items, depth: int) -> None:
    rows = getattr(target, items.response_field)
    new = getattr(source, items.response_field)
    inner = items.inner
    if depth and rows and len(new) == 1 and inner is not None:
        _merge_rows(rows[-1], new[0], inner, depth - 1)
    else:
        rows.extend(new)


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
