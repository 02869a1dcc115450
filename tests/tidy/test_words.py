"""Retired words: each word that `retired_words.txt` lists is absent from the tree.

The list has one entry a line, `word -> replacement`, and comments. There are two kinds:

- An entry in lower case is a word or a phrase. It is searched in code, comments, strings and
  documents, case-insensitively, at word boundaries, also as a part of an identifier and over line
  ends. `answer/s/ed/ing` stands for answer, answers, answered, answering.
- An entry with a capital letter is an identifier. It is searched as a whole, case-sensitively.

An entry that ends in `[not in tests]` is not searched in tests/, where code has the words.

A line that begins with `allow` is an exception: `allow word in path: reason`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import pytest

from tests.tidy.source_tree import ROOT
from tests.tidy.test_tree_rules import tracked_files

LIST = ROOT / "tests" / "tidy" / "retired_words.txt"
TEXT = (".py", ".md", ".txt", ".toml", ".yml", ".yaml", ".json", ".sh", ".html", ".js", ".css")
TEXT_NAMES = ("Makefile", "Dockerfile")
# Generated files, golden data, and the pages that show retired words on purpose.
NOT_SEARCHED = (
    "protocol/messages/",
    "tests/golden/",
    "benchmarks/kafka_baseline.json",
    "docs/style.md",
    "tests/tidy/retired_words.txt",
    "tests/tidy/test_words.py",
)
NOT_IN_TESTS = " [not in tests]"
ALLOW = re.compile(r"allow (?P<word>.+) in (?P<path>\S+): (?P<reason>\S.*)")
# Between the words of a phrase: blanks, or the end of a line with the marks of a comment.
GAP = r"[\s#*>/\"-]+"


class Retired(NamedTuple):
    words: tuple[str, ...]
    replacement: str
    pattern: re.Pattern[str]
    is_for_tests: bool = True

    @property
    def is_identifier(self) -> bool:
        return self.words[0] != self.words[0].lower()


def retired(line: str) -> Retired:
    """An entry of the list."""
    text, arrow, replacement = line.partition(" -> ")
    assert arrow, f"no replacement in {line!r}"
    stem, *endings = text.strip().split("/")
    words = (stem, *(stem + ending for ending in endings))
    if stem != stem.lower():
        return Retired(words, replacement, re.compile(rf"\b{re.escape(stem)}\b"))
    words = tuple(word.replace("_", " ") for word in words)
    either = "|".join(GAP.join(map(re.escape, word.split())) for word in words)
    pattern = re.compile(rf"(?<![a-z])(?:{either})(?![a-z])")
    is_for_tests = not replacement.endswith(NOT_IN_TESTS)
    return Retired(words, replacement.removesuffix(NOT_IN_TESTS), pattern, is_for_tests)


def split_words(text: str) -> str:
    """The text in lower case, with the parts of identifiers as words; lines stay lines."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return apart.replace("_", " ").lower()


@cache
def lines_of_list() -> list[str]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


@cache
def entries() -> list[Retired]:
    return [retired(line) for line in lines_of_list() if not line.startswith("allow ")]


@cache
def exceptions() -> set[tuple[str, str]]:
    """(word, path): where a retired word is allowed."""
    found = set()
    for line in lines_of_list():
        if line.startswith("allow "):
            match = ALLOW.fullmatch(line)
            assert match, f"not `allow word in path: reason`: {line!r}"
            found.add((match["word"], match["path"]))
    return found


def searched_files() -> list[str]:
    return [
        name
        for name in tracked_files()
        if (name.endswith(TEXT) or name.endswith(TEXT_NAMES)) and not name.startswith(NOT_SEARCHED)
    ]


class Text(NamedTuple):
    """A text as it is, and split into words: once for all entries."""

    whole: str
    words: str

    @classmethod
    def of(cls, text: str) -> Text:
        return cls(text, split_words(text))


def found_in(text: Text, entry: Retired) -> list[tuple[int, str]]:
    """(line, word) of each place of a retired word."""
    searched = text.whole if entry.is_identifier else text.words
    if not any(word.split()[0] in searched for word in entry.words):
        return []  # a plain search is faster than the pattern
    return [
        (searched.count("\n", 0, match.start()) + 1, " ".join(match[0].split()))
        for match in entry.pattern.finditer(searched)
    ]


def text_of(name: str) -> Text:
    return Text.of((ROOT / name).read_text(encoding="utf-8"))


def test_no_retired_words() -> None:
    wrong = []
    for name in searched_files():
        text = text_of(name)
        for entry in entries():
            if name.startswith("tests/") and not entry.is_for_tests:
                continue
            wrong += [
                f"{name}:{line}: {word!r}; use: {entry.replacement}"
                for line, word in found_in(text, entry)
                if (word, name) not in exceptions()
            ]
    assert not wrong, "\n".join(wrong)


def test_exceptions_are_needed() -> None:
    unused = [
        f"{word} in {path}"
        for word, path in exceptions()
        if not (ROOT / path).exists()
        or not any(
            word == found for entry in entries() for _, found in found_in(text_of(path), entry)
        )
    ]
    assert not unused, "\n".join(unused)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("An Answer of a broker", [(1, "answer")]),
        ("\n    def on_answers(self) -> None: ...", [(2, "answers")]),
        ("class AnswerCallbacks:", [(1, "answer")]),
        ("unanswerable, answerable", []),
        ("self._answered_at", [(1, "answered")]),
    ],
)
def test_words_are_found(text: str, places: list[tuple[int, str]]) -> None:
    assert found_in(Text.of(text), retired("answer/s/ed -> response")) == places


def test_phrases_are_found_over_line_ends() -> None:
    entry = retired("comes to be -> is created")
    assert found_in(Text.of("# a topic comes\n    # to be"), entry)[0][0] == 1


def test_identifiers_are_found_as_they_are() -> None:
    entry = retired("Peers -> InterBrokerClient")
    assert found_in(Text.of("peers: Peers, PeersOf"), entry) == [(1, "Peers")]


def test_entries_may_leave_out_the_tests() -> None:
    entry = retired("in words -> as text [not in tests]")
    assert (entry.replacement, entry.is_for_tests) == ("as text", False)
    assert retired("answer -> response").is_for_tests
