"""docs/configuration.md has the text that the definitions generate, and says what tests show."""

from __future__ import annotations

import ast
import inspect
import re

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.definitions import broker_settings, topic_settings
from ottla.broker.config.unsupported import REFUSED
from tests.doubles.remote_settings import REMOTE_SETTINGS
from tests.doubles.security_settings import PROBED, SHOWN, security_settings
from tests.tidy.source_tree import ROOT
from tools.configuration_page import (
    PAGE,
    WITHOUT_EFFECT,
    names_in_the_code,
    page,
    unused,
    without_effect_file,
)


def definitions(text: str) -> list[str]:
    """Without the column of use where it comes from the code, which can be ahead of the page."""
    security = tuple(f"| `{name}` |" for name in security_settings(broker_settings()))
    return [
        line
        if line.startswith(security)
        else re.sub(r" (yes|no) \|$|, \d+ of them in use", "", line)
        for line in text.splitlines()
    ]


def test_it_is_current() -> None:
    written = definitions(PAGE.read_text(encoding="utf-8"))
    assert written == definitions(page()), "run python -m tools.configuration_page"


def test_the_broker_names_what_it_does_not_use() -> None:
    written = WITHOUT_EFFECT.read_text(encoding="ascii")
    assert written == without_effect_file(), "run python -m tools.configuration_page"


def test_every_setting_has_a_line() -> None:
    text = page()
    names = [*broker_settings(), *topic_settings()]
    without_line = [name for name in names if f"\n| `{name}` |" not in text]
    assert sorted(without_line) == unused()
    assert [name for name in unused() if f"`{name}`" not in text] == []


def test_what_protects_something_is_shown_by_a_test() -> None:
    """A setting that the code reads and no test shows may be read and have no effect."""
    read = set(security_settings(names_in_the_code()))
    assert read - PROBED - set(SHOWN) - set(REFUSED) == set()
    assert set(SHOWN) & PROBED == set()
    assert (PROBED | set(SHOWN)) <= set(security_settings(broker_settings()))


def test_the_effect_of_tiered_storages_settings_is_shown_by_a_test() -> None:
    read = {name for name in names_in_the_code() if name.startswith("remote.")}
    assert read & set(broker_settings()) == set(REMOTE_SETTINGS)


def test_the_named_tests_exist() -> None:
    missing = []
    for name, reference in {**SHOWN, **REMOTE_SETTINGS}.items():
        path, _, function = reference.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        if function and function not in functions:
            missing.append((name, reference))
    assert missing == []


def test_every_setting_that_counts_as_used_is_read() -> None:
    """An annotation alone makes it used; those of topics and of security are counted otherwise."""
    read: set[object] = set()
    for path in sorted((ROOT / "broker").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                read.add(node.attr.replace("_", "."))
            elif isinstance(node, ast.Constant):
                read.add(node.value)
    annotated = {name for part in BrokerConfig.__mro__ for name in inspect.get_annotations(part)}
    settings = {name.replace("_", ".") for name in annotated} & set(broker_settings())
    elsewhere = {each.broker_synonym for each in topic_settings().values()}
    assert settings - read - elsewhere - set(security_settings(settings)) == set()
