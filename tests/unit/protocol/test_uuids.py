import pytest

from ottla.protocol.uuids import ONE_UUID, ZERO_UUID, random_uuid, uuid_from_string, uuid_to_string


def test_text_is_that_of_kafka() -> None:
    # org.apache.kafka.common.Uuid prints these so.
    assert uuid_to_string(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_string(ONE_UUID) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_to_string(bytes.fromhex("112233445566778899aabbccddeeff00")) == (
        "ESIzRFVmd4iZqrvM3e7_AA"
    )


def test_text_comes_back() -> None:
    for seed in range(50):
        uuid = bytes((seed * 37 + index * 11) % 256 for index in range(16))
        assert uuid_from_string(uuid_to_string(uuid)) == uuid


@pytest.mark.parametrize("text", ["", "abc", "A" * 25, "A" * 24, "AAAAAAAAAAAAAAAAAAAAA\u017e"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a uuid in base64"):
        uuid_from_string(text)


def test_random_ones_are_version_4_and_never_start_with_a_dash() -> None:
    made = {random_uuid() for _ in range(500)}
    assert len(made) == 500
    for uuid in made:
        assert uuid[6] >> 4 == 4
        assert uuid[8] >> 6 == 2
        assert not uuid_to_string(uuid).startswith("-")
