import pytest

from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponseTopic
from ottla.protocol.messages.stored.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)
from ottla.protocol.uuids import ZERO_UUID


def test_defaults_are_kafkas() -> None:
    request = FetchRequest()
    assert request.replica_id == -1
    assert request.max_bytes == 0x7FFF_FFFF
    assert request.cluster_id is None
    assert request.replica_state is None
    assert request.topics == []
    assert request.rack_id == ""
    assert MetadataRequest().allow_auto_topic_creation is True
    assert MetadataResponseTopic().topic_id == ZERO_UUID
    assert ConsumerGroupMemberMetadataValue().classic_member_metadata == ClassicMemberMetadata()


def test_default_lists_are_not_shared() -> None:
    FetchRequest().topics.append  # noqa: B018  # only read
    first, second = FetchRequest(), FetchRequest()
    assert first.topics is not second.topics


def test_equality_is_by_value_and_class() -> None:
    assert FetchResponse(session_id=3) == FetchResponse(session_id=3)
    assert FetchResponse(session_id=3) != FetchResponse(session_id=4)
    assert FetchResponse() != FetchRequest()
    nested = FetchResponse(responses=[FetchableTopicResponse("a")])
    assert nested == FetchResponse(responses=[FetchableTopicResponse("a")])
    assert nested != FetchResponse(responses=[FetchableTopicResponse("b")])


def test_messages_cannot_be_keys() -> None:
    with pytest.raises(TypeError):
        hash(FetchRequest())


def test_misspelt_fields_are_refused() -> None:
    with pytest.raises(AttributeError):
        FetchRequest().max_wait = 1  # type: ignore[attr-defined]  # the point of the test


def test_repr_shows_the_fields_and_hides_the_empty_extra() -> None:
    text = repr(FetchableTopicResponse("orders"))
    assert text.startswith("FetchableTopicResponse(topic='orders'")
    assert "unknown_tagged_fields" not in text
    assert "unknown_tagged_fields={9: b''}" in repr(
        FetchableTopicResponse("orders", unknown_tagged_fields={9: b""})
    )
