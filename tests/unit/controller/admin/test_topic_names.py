"""Which topic names are legal, and which collide."""

from __future__ import annotations

import pytest

from ottla.controller.admin.topic_names import colliding, name_problem


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


def test_dots_and_underscores_collide() -> None:
    others = ["a.b", "a-b", "c_d"]
    assert colliding("a_b", others) == ["a.b"]
    assert colliding("c.d", others) == ["c_d"]
    assert colliding("a-b", others) == []
    assert colliding("a.b", others) == []
