"""Classes that settings name: which are found, and what they are configured with."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.python_classes import find_class, load_class


class Own:
    def configure(self, settings: Mapping[str, str]) -> None:
        self.settings = settings

    def decide(self) -> None: ...


class Failing(Own):
    def __init__(self) -> None:
        raise OSError("no file")


def test_a_class_is_found_and_configured() -> None:
    given = {"a": "1"}
    made = load_class("s", f"{__name__}.Own", ("decide",), "ottla.own", given)
    assert isinstance(made, Own)
    assert made.settings == given
    assert made.settings is not given


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Own", r"s: Own is no class with a method decide \(ottla.own\)"),
        ("com.acme.Own", "s: com.acme.Own is no Python class that can be imported here"),
        (f"{__name__}.Missing", "is no Python class that can be imported here"),
        (f"{__name__}.pytest", "is no class with a method decide"),
    ],
)
def test_what_is_no_such_class(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_class("s", name, ("decide",), "ottla.own")


def test_a_class_that_fails_is_named() -> None:
    with pytest.raises(ConfigError, match="Failing cannot be used: OSError"):
        load_class("s", f"{__name__}.Failing", ("decide",), "ottla.own", {})
