"""`LinearPattern` accepts what RE2 accepts, and matches what RE2 matches."""

import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.groups.patterns.linear import LinearPattern
from ottla.broker.groups.patterns.syntax import BadPattern

# Pieces, not letters: most texts of random letters are not patterns.
PIECES = (
    *("a", "b", "A", "z", "0", "9", "-", "_", ".", " ", "é", "\n", "^", "$", "|", "(", ")"),
    *("(?:", "(?i)", "(?i:", "(?s)", "(?-s)", "(?m)", "(?P<n>", "(?<x>", "(?=", "(?"),
    *("*", "+", "?", "*?", "{2}", "{1,2}", "{,2}", "{2,}", "{3,1}", "{0}", "{40,}", "{1001}"),
    *("{", "}", "[", "]", "[^", "[a-c]", "[^a-c]", "[[:alpha:]]", "[[:^digit:]]", "[]a]"),
    *(r"[\d-]", "[a-]", r"\d", r"\W", r"\s", r"\b", r"\B", r"\A", r"\z", r"\Q", r"\E"),
    *(r"\.", r"\_", r"\x41", r"\x{62}", r"\1", r"\12", r"\0", r"\n", "\\"),
)
NAMES = (
    "",
    "a",
    "b",
    "A",
    "-",
    "ab",
    "aa",
    "abc",
    "a-b",
    "a_b",
    "9a",
    "é",
    "a\nb",
    "bbbb",
    "z{,2}",
)

OPTIONS = re2.Options()
OPTIONS.log_errors = False
OPTIONS.never_capture = True


@settings(max_examples=1_500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_accepts_and_matches_what_re2_does(text: str) -> None:
    try:
        expected = re2.compile(text, OPTIONS)
    except re2.error:
        expected = None
    try:
        pattern = LinearPattern(text)
    except BadPattern:
        pattern = None
    assert (expected is None) == (pattern is None)
    if expected is not None and pattern is not None:
        for name in NAMES:
            assert bool(expected.fullmatch(name)) == pattern.fullmatch(name), name
