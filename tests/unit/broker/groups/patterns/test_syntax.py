import pytest

from ottla.broker.groups.patterns.syntax import (
    MAX_DEPTH,
    MAX_LENGTH,
    Assertion,
    BadPattern,
    Characters,
    Choice,
    Parser,
    Repeat,
    Sequence,
    negated,
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(a", "missing ): (a"),
        ("a)", "unexpected ): a)"),
        ("[a", "missing ]: [a"),
        ("[a-", "missing ]: [a-"),
        ("[b-a]", "invalid character class range: b-a"),
        ("[[:letters:]]", "invalid character class range: [:letters:]"),
        ("*a", "missing argument to repetition operator: *"),
        ("(?i)+", "missing argument to repetition operator: +"),
        ("a**", "bad repetition operator: **"),
        ("a{2,1}", "bad repetition operator: {2,1}"),
        ("a{1001}", "bad repetition operator: {1001}"),
        ("a{99999999999999999999}", "bad repetition operator"),
        ("(a{100}){100}", "bad repetition operator: {100}"),
        ("(?=a)", "invalid perl operator: (?="),
        ("(?P<x>a)(?P<x>b)", "duplicate capture group name: x"),
        (r"(a)\1", r"invalid escape sequence: \1"),
        (r"\y", r"invalid escape sequence: \y"),
        (r"\x{110000}", "invalid escape sequence"),
        ("a\\", "trailing \\"),
        (r"\pL", r"not supported here: \p"),
        ("(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), "nested too deeply"),
        ("a" * (MAX_LENGTH + 1), "pattern too large"),
    ],
)
def test_rejected(text: str, reason: str) -> None:
    with pytest.raises(BadPattern) as refused:
        Parser(text).parse()
    assert reason in str(refused.value)


def test_the_tree_of_a_pattern() -> None:
    a, b = Characters(((97, 97),)), Characters(((98, 98),))
    assert Parser("a|b*$").parse() == Choice(
        (Sequence((a,)), Sequence((Repeat(b, 0, None), Assertion("end_text"))))
    )


def test_a_brace_that_is_no_count_is_a_character() -> None:
    assert Parser("{,2}").parse() == Sequence(
        tuple(Characters(((ord(each), ord(each)),)) for each in "{,2}")
    )


def test_negated_ranges() -> None:
    assert negated(()) == ((0, 0x10FFFF),)
    assert negated(((98, 99), (0, 10), (5, 97))) == ((100, 0x10FFFF),)
    assert negated(((0, 0x10FFFF),)) == ()
