"""Parameters of a page and of a change: typed, bounded, named in the error."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.observability.console.parameters import InvalidParameter, Parameters


def given(**values: Any) -> Parameters:
    return Parameters(values)


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [("a=1&a=2", "a", "2"), ("a=", "a", ""), ("a=%C3%BC", "a", "ü")],
)
def test_the_query_of_an_address(query: str, name: str, value: str) -> None:
    assert Parameters.of_query(query).text(name) == value


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object(body: bytes) -> None:
    with pytest.raises(InvalidParameter, match="the body is not"):
        Parameters.of_json(body)


@pytest.mark.parametrize(("values", "expected"), [("7", 7), (7, 7), ("-1", 0), (99, 10), (None, 3)])
def test_numbers_of_a_page_move_into_their_range(values: Any, expected: int) -> None:
    assert given(n=values).number("n", 3, 0, 10) == expected


@pytest.mark.parametrize("value", ["1e3", "9" * 20, 1.5, True, "", "²", [1]])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(InvalidParameter, match="n is not a whole number"):
        given(n=value).number("n", 0, 0, 10)


def test_a_number_of_a_change_is_refused_beyond_its_range() -> None:
    assert given(n=-1).exact("n", -1, 5) == -1
    with pytest.raises(InvalidParameter, match="n is not between -1 and 5"):
        given(n=6).exact("n", -1, 5)
    with pytest.raises(InvalidParameter, match="the parameter n is missing"):
        given().exact("n", -1, 5)


def test_texts_rows_and_flags_have_their_types() -> None:
    values = given(texts={"a": None, "b": "c"}, rows=[{"x": "y"}], flag=True, none=None)
    assert values.texts("texts", 2) == {"a": None, "b": "c"}
    assert [row.text("x") for row in values.rows("rows", 1)] == ["y"]
    assert values.flag("flag")
    assert values.optional_text("none") is None
    for call in (
        lambda: values.texts("texts", 1),
        lambda: values.texts("rows", 9),
        lambda: values.rows("texts", 9),
        lambda: values.rows("rows", 0),
        lambda: values.flag("texts"),
        lambda: values.text("flag"),
    ):
        with pytest.raises(InvalidParameter):
            call()


def test_what_is_deleted_is_typed_twice() -> None:
    assert given(name="orders", confirm="orders").confirmed("name") == "orders"
    for confirm in ("order", "", "Orders"):
        with pytest.raises(InvalidParameter, match="type orders"):
            given(name="orders", confirm=confirm).confirmed("name")
