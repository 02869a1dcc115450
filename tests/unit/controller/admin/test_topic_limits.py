"""Which topic names are legal, and which collide."""

from __future__ import annotations

import pytest

from ottla.controller.admin.topic_limits import metric_name, name_problem


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "_", "...", "x" * 249, "__consumer_offsets"])
def test_legal_names(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty string"),
        (".", "'.' or '..'"),
        ("..", "'.' or '..'"),
        ("x" * 250, "longer than the max allowed length 249"),
        ("a b", "other than ASCII alphanumerics"),
        ("a/b", "other than ASCII alphanumerics"),
        ("\u00fc", "other than ASCII alphanumerics"),
    ],
)
def test_illegal_names_get_kafkas_text(name: str, words: str) -> None:
    problem = name_problem(name)
    assert problem is not None
    assert problem.startswith("Topic name is invalid: ")
    assert words in problem


def test_dots_and_underscores_are_the_same_in_metrics() -> None:
    assert metric_name("a.b_c-d") == metric_name("a_b.c-d") != metric_name("a-b.c-d")
