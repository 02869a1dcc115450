import pytest

from ottla.protocol.listed import MAX_CHARACTERS, MAX_LISTED, abridged, listed


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], ""),
        (["a"], "a"),
        ((number for number in range(3)), "0, 1, 2"),
        (range(MAX_LISTED), ", ".join(map(str, range(MAX_LISTED)))),
    ],
)
def test_a_short_list_is_whole(items: list[object], text: str) -> None:
    assert listed(items) == text


def test_a_long_list_says_how_many_are_left_out() -> None:
    assert listed(range(250)).endswith(f"{MAX_LISTED - 1} ... and {250 - MAX_LISTED} more")


def test_long_names_count_by_their_length() -> None:
    names = ["t" * 249] * 250
    text = listed(names)
    assert len(text) < MAX_CHARACTERS + 30
    shown = text.count("t" * 249)
    assert text.endswith(f" ... and {250 - shown} more")
    assert listed(["x" * 9999]) == "x" * 9999


def test_a_long_value_is_cut() -> None:
    assert abridged("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS
    assert abridged("x" * 9999) == "x" * MAX_CHARACTERS + "..."
