"""docs/configuration.md says what the definitions say."""

from __future__ import annotations

from broker.config_definitions import broker_settings, topic_settings
from tools.configuration_page import PAGE, page


def test_it_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.configuration_page"


def test_every_setting_has_a_line() -> None:
    text = page()
    names = [*broker_settings(), *topic_settings()]
    assert [name for name in names if f"\n| `{name}` |" not in text] == []
