import sys

import pytest

from ottla.broker.groups.consumer import topic_patterns
from ottla.broker.groups.patterns import linear
from ottla.broker.groups.patterns.linear import MAX_STEPS, LinearPattern
from ottla.broker.groups.patterns.syntax import BadPattern
from ottla.protocol.steps import run_at_once


@pytest.mark.parametrize(
    ("text", "matches", "others"),
    [
        ("", [""], ["a"]),
        ("orders.*", ["orders", "orders-eu"], ["my-orders"]),
        ("(eu|us)-(orders|bills)", ["eu-orders", "us-bills"], ["eu-", "eu-orders-2"]),
        ("t[0-9]{2,3}", ["t10", "t100"], ["t1", "t1000"]),
        ("[^_].+", ["a-b"], ["_a", "a"]),
        (r"(?i)orders_\d", ["ORDERS_1", "oRders_2"], ["orders_x"]),
        (r"(?i:a)b", ["ab", "Ab"], ["AB"]),
        (r"\Qa.b\E.", ["a.bc"], ["axbc"]),
        (r"[[:upper:]\d-]+", ["A-1"], ["a-1"]),
        (r"^a$|\Ab\z", ["a", "b"], ["ab"]),
        (r".*\bend", ["the-end", "end"], ["bend"]),
        (r"a\Bb", ["ab"], ["a-b"]),
        (r"(?m)a$\n^b", ["a\nb"], ["ab"]),
        (".", ["é"], ["\n", ""]),
        ("(?s).", ["\n"], []),
        ("(a*)*", ["", "aaa"], ["b"]),
    ],
)
def test_matches_whole_names(text: str, matches: list[str], others: list[str]) -> None:
    pattern = LinearPattern(text)
    for _ in range(2):  # the second time with what it knows
        assert [name for name in [*matches, *others] if pattern.fullmatch(name)] == matches


def test_a_program_is_bounded() -> None:
    LinearPattern("a" * MAX_STEPS)
    for text in ("a" * (MAX_STEPS + 1), "(ab){999}", "a?" * MAX_STEPS):
        with pytest.raises(BadPattern, match="pattern too large"):
            LinearPattern(text)


def test_known_sets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MAX_KNOWN_SETS", 3)
    pattern = LinearPattern("(a|b)*a(a|b){9}")
    assert pattern.fullmatch("abba" * 10 + "a" + "b" * 9)
    assert len(pattern._known) <= 3


def test_a_pattern_for_which_backtracking_takes_days() -> None:
    """Here each character after the third leads from a known set to a known set."""
    pattern = LinearPattern("(a+)+b")
    assert not pattern.fullmatch("a" * 249)
    assert len(pattern._known) == 5


def test_used_where_there_is_no_package_of_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    topic_patterns.compile_pattern.cache_clear()
    try:
        assert isinstance(topic_patterns.compile_pattern("a+"), LinearPattern)
        assert run_at_once(topic_patterns.find_matching("a+|b", ["a", "aa", "ab", "b"])) == {
            "a",
            "aa",
            "b",
        }
        assert run_at_once(topic_patterns.find_matching("(", ["a"])) == frozenset()
    finally:
        topic_patterns.compile_pattern.cache_clear()
