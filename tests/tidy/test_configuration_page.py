"""docs/configuration.md has the text that the definitions generate."""

from __future__ import annotations

import re

from ottla.broker.config.definitions import broker_settings, topic_settings
from tools.configuration_page import PAGE, page


def definitions(text: str) -> str:
    """Without the column of use: it changes with the code, and can be out of date for a while."""
    return re.sub(r" (yes|no) \|$|, \d+ of them in use", "", text, flags=re.MULTILINE)


def test_it_is_current() -> None:
    written = definitions(PAGE.read_text(encoding="utf-8"))
    assert written == definitions(page()), "run python -m tools.configuration_page"


def test_every_setting_has_a_line() -> None:
    text = page()
    names = [*broker_settings(), *topic_settings()]
    assert [name for name in names if f"\n| `{name}` |" not in text] == []
