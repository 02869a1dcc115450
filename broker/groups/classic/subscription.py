"""The subscribed topics in the metadata of members of protocol type "consumer".

The coordinator treats member metadata as opaque bytes, with this exception (as in Kafka): offsets
of topics that a group is subscribed to neither expire nor can be deleted.
"""

from collections.abc import Iterable

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics_of(metadata_of_members: Iterable[bytes]) -> frozenset[str] | None:
    """Return the union of all members' topics, or None when a subscription cannot be decoded."""
    topics: set[str] = set()
    for metadata in metadata_of_members:
        found = _topics(metadata)
        if found is None:
            return None
        topics.update(found)
    return frozenset(topics)


def _topics(metadata: bytes) -> list[str] | None:
    """Return the topics of a ConsumerProtocolSubscription; later versions append fields."""
    if len(metadata) < 6 or int.from_bytes(metadata[0:2], signed=True) < 0:
        return None
    count = int.from_bytes(metadata[2:6], signed=True)
    position = 6
    topics = []
    # Each topic has at least its two length bytes, so the input bounds the loop.
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
