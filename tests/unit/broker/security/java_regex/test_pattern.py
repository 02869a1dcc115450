"""Where Java's expressions differ from Python's; `tests/golden/identity` asks Java itself."""

from __future__ import annotations

import pytest

from ottla.broker.security.java_regex.machine import TooManySteps
from ottla.broker.security.java_regex.pattern import JavaPattern, ReplacementError
from ottla.broker.security.java_regex.tree import PatternError


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        (r"\d", "\u0660", False),
        (r"\w", "ü", False),
        (r"\s", "\xa0", False),
        (r"\h", "\xa0", True),
        (".", "\x85", False),
        (".", "\u2028", False),
        ("(?s).", "\u2028", True),
        (r"a$\n", "a\n", True),
        (r"a$\u2028", "a\u2028", True),
        ("[a-z&&[^b]]", "b", False),
        ("[a-c[x-z]]", "y", True),
        ("[^a[b]]", "b", False),
        ("[]a]", "]", True),
        ("[a-]", "-", True),
        (r"[\Q]\E]", "]", True),
        (r"\Qa.c\E+", "a.ccc", True),
        ("(?i)ü", "Ü", False),
        ("(?i)[a-c]", "B", True),
        (r"(a)|b\1", "b", False),
        (r"\2(a)", "a", False),
        ("a++a", "aa", False),
        ("(?>a|ab)c", "abc", False),
        ("(?<!a)b", "b", True),
        (r"a\b", "a", True),
        (r"\R\n", "\r\n", True),
        (r"\R{2}", "\r\n", False),
        ("(|a){2}", "a", True),
        (r"\x{1F600}\uD83D\uDE00", "\U0001f600\U0001f600", True),
    ],
)
def test_matches(pattern: str, text: str, is_match: bool) -> None:
    assert JavaPattern(pattern).matches(text) is is_match


def test_groups_keep_what_a_repeated_group_gave_back() -> None:
    assert JavaPattern("((.)b)*cbX").groups_of("abcbX") == [None, "ab", "c"]


@pytest.mark.parametrize(
    ("pattern", "text", "replacement", "result"),
    [
        ("(.*)", "abc", "$1;", "abc;;"),
        ("x*", "axb", "-", "-a--b-"),
        ("(a)", "a", "$12", "a2"),
        ("(?<n>a)", "a", "${n}${n}", "aa"),
        ("(a)|b", "ab", "<$1>", "<a><>"),
        ("a", "a", "\\$\\\\", "$\\"),
    ],
)
def test_replacements(pattern: str, text: str, replacement: str, result: str) -> None:
    assert JavaPattern(pattern).replace_all(text, replacement) == result


def test_the_first_match_only() -> None:
    assert JavaPattern("a").replace_first("aa", "b") == "ba"


@pytest.mark.parametrize("replacement", ["$", "$x", "$2", "${n}", "${", "a\\"])
def test_replacements_that_java_rejects(replacement: str) -> None:
    with pytest.raises(ReplacementError):
        JavaPattern("(a)").replace_all("a", replacement)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("a)", 1),
        ("a(b", 1),
        ("*a", 0),
        ("a**", 2),
        ("a{", 2),
        ("a{2,1}", 5),
        ("[a", 2),
        ("[z-a]", 3),
        (r"\y", 1),
        ("a\\", 1),
        (r"\xg", 2),
        ("(?<a>b)(?<a>c)", 11),
        ("(?<=a+)b", 4),
        ("(?<=(a|b){1,2})b", 4),
        ("(?y)", 2),
        (r"a\G", 2),
        ("((a){2}+)", 4),
        ("(" * 60 + ")" * 60, 50),
        ("((a{1000}){1000}){1000}", 0),
    ],
)
def test_what_is_not_read_is_named_with_its_position(pattern: str, position: int) -> None:
    with pytest.raises(PatternError) as raised:
        JavaPattern(pattern)
    assert raised.value.position == position


def test_steps_are_limited() -> None:
    with pytest.raises(TooManySteps):
        JavaPattern("(a*)*b").matches("a" * 10_000)
