"""What the coordinator understands of its members' metadata: the topics they subscribe to.

The group protocol carries the metadata of clients as bytes that only clients interpret. Kafka
makes one exception for the protocol type "consumer", and so do we: offsets of topics that a
live group reads must neither expire nor be deleted.
"""

from collections.abc import Iterable

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics_of(metadata_of_members: Iterable[bytes]) -> frozenset[str] | None:
    """The union of all members' topics, or None when one of them cannot be read."""
    topics: set[str] = set()
    for metadata in metadata_of_members:
        found = _topics(metadata)
        if found is None:
            return None
        topics.update(found)
    return frozenset(topics)


def _topics(metadata: bytes) -> list[str] | None:
    """The topic list of a ConsumerProtocolSubscription; later versions only add fields behind."""
    if len(metadata) < 6 or int.from_bytes(metadata[0:2], signed=True) < 0:
        return None
    count = int.from_bytes(metadata[2:6], signed=True)
    position = 6
    topics = []
    # A topic takes at least its two length bytes, which bounds the loop by the input.
    if count < 0 or count * 2 > len(metadata) - position:
        return None
    for _ in range(count):
        end = position + 2
        length = int.from_bytes(metadata[position:end], signed=True)
        position = end + length
        if length < 0 or position > len(metadata):
            return None
        try:
            topics.append(metadata[end:position].decode())
        except UnicodeDecodeError:
            return None
    return topics
