"""The names of `Faults` as types, beside the tables of the protocol."""

from __future__ import annotations

from typing import get_args

from ottla.broker.testing.names import ApiName, ErrorName
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import API_BY_NAME


def test_they_are_the_names_of_the_protocol() -> None:
    codes = {name for name, code in vars(ErrorCode).items() if isinstance(code, int)}
    assert set(get_args(ApiName)) == set(API_BY_NAME)
    assert set(get_args(ErrorName)) == codes - {"NONE"}
