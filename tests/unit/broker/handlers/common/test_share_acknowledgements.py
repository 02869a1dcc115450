import pytest

from ottla.broker.handlers.common.share_acknowledgements import are_valid, session_key
from ottla.broker.share.share_partition import Acknowledgement
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_acknowledge import ShareAcknowledgeRequest


@pytest.mark.parametrize(
    ("batches", "valid"),
    [
        ([(0, 9, [1])], True),
        ([(0, 2, [0, 1, 3]), (3, 3, [2])], True),
        ([(5, 4, [1])], False),
        ([(5, 9, [1]), (0, 4, [1])], False),
        ([(0, 9, [])], False),
        ([(0, 9, [1, 1])], False),
        ([(0, 0, [5])], False),
        ([(0, 0, [-1])], False),
        ([(0, 0, [4])], False),
    ],
)
def test_batches(batches: list[tuple[int, int, list[int]]], valid: bool) -> None:
    assert are_valid([Acknowledgement(*batch) for batch in batches], may_renew=False) == valid


def test_renewals() -> None:
    assert are_valid([Acknowledgement(0, 0, [4])], may_renew=True)


@pytest.mark.parametrize(("group", "member"), [(None, "m"), ("g", ""), ("g", "m" * 37)])
def test_invalid_groups_and_members(group: str | None, member: str) -> None:
    with pytest.raises(KafkaError) as refused:
        session_key(ShareAcknowledgeRequest(group, member))
    assert refused.value.code == ErrorCode.INVALID_REQUEST
