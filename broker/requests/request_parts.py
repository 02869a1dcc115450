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

#: The elements of one part. A denied topic costs about 25 us, a described one some more: a part
#: takes one or two milliseconds, well below the 50 ms that count as a stall.
PART_ELEMENTS = 64
# What cannot be divided takes at most this: with some microseconds for each element 30 ms.
MAX_UNDIVIDED_ELEMENTS = 5000


class Limits(NamedTuple):
    """How many elements the requests of an API may have: topics, partitions, names of all arrays.

    The defaults are for an API of which an element costs up to 25 us.
    """

    #: A request with at most these is handled at once: 1.6 ms.
    small: int = 64
    #: A request with at most these has one turn for itself: 4 ms. A record with acks=all waits for
    #: several turns, of its leader and of the fetches.
    inline: int = 150
    #: A request with more is invalid: its connection is closed.
    most: int = MAX_UNDIVIDED_ELEMENTS
    #: The elements of longer frames are counted. In 256 bytes there are 256 names at the most.
    small_frame_bytes: int = 256
    #: Controllers send one request at a time, which must not wait for those of other clients.
    takes_place: bool = True


_OF_PARTITIONS = Limits(300, 2000, small_frame_bytes=32768)

ORDINARY = Limits()
#: Requests that are handled in parts or in turns: with decoded request, response and its bytes
#: about 20 MB, and few enough objects for a run of the garbage collector that takes below 50 ms.
LARGE = ORDINARY._replace(most=50_000)
#: Many partitions are usual, take more bytes, and cost 6 us each.
FETCH = _OF_PARTITIONS._replace(most=50_000)
#: Records for more partitions than the megabyte of a Java producer's request has batches: they
#: are checked in one turn, which takes 2 us each, and then appended in several ones.
PRODUCE = _OF_PARTITIONS._replace(most=15_000)
#: The partitions of the transaction in which they are produced.
TRANSACTION = ORDINARY._replace(most=PRODUCE.most)
#: All partitions of a member of a consumer group, or all members of a classic group, which cannot
#: be divided: handled in one turn they take 1.5 us each at the most.
MEMBER = ORDINARY._replace(most=20_000)
#: Controllers send the state of all partitions of a cluster, with ten elements for each; a leader
#: that a follower left, the ISRs of all its partitions. A change of leaders is urgent.
CONTROL = Limits(inline=500, most=5_000_000, takes_place=False)


class Items(NamedTuple):
    """A list of a request, and the list of the response that has a row for each item.

    A request whose items Kafka handles one by one is divided into parts with some of them each.
    """

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


def itself(item: Any) -> Any:
    return item


def weigh_configs(item: Any) -> int:
    return len(item.configs)


def weigh_keys(item: Any) -> int:
    return len(item.configuration_keys or ())


def weigh_assignments(item: Any) -> int:
    weight = 0
    for each in item.assignments or ():
        weight += 1 + len(each.broker_ids)
        if weight > MAX_UNDIVIDED_ELEMENTS:
            break
    return weight


def weigh_topic(item: Any) -> int:
    return weigh_assignments(item) + weigh_configs(item)


NAME = attrgetter("name")
RESOURCE = attrgetter("resource_type", "resource_name")


def _topics_of(inner_request: str, inner_response: str = "partitions") -> Items:
    return Items("topics", "topics", Items(inner_request, inner_response))


TOPICS = _topics_of("partitions")
INDEXES = _topics_of("partition_indexes")


def items_of(divisible: tuple[Items, ...], request: Message) -> Items | None:
    """Return the first of these lists that the request has; None if it is handled whole."""
    for items in divisible:
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
