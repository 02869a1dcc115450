"""What each setting means: the texts of DescribeConfigs and of docs/configuration.md.

`settings/documentation.txt` has one line a setting; it is read when a client first requests it.
"""

from __future__ import annotations

import os
from functools import cache

from ottla.broker.config.definitions import topic_settings
from ottla.broker.config.listeners import base_name


def broker_documentation(name: str) -> str | None:
    """The text of a broker setting, also with the prefix of a listener; None if it is unknown."""
    return _texts().get(base_name(name))


def topic_documentation(name: str) -> str | None:
    """The text of a topic setting: its own, else that of the broker setting of its default."""
    setting = topic_settings().get(name)
    if setting is None:
        return None
    return _texts().get(name) or _texts().get(setting.broker_synonym or "")


@cache
def _texts() -> dict[str, str]:
    path = os.path.join(os.path.dirname(__file__), "settings", "documentation.txt")
    with open(path, encoding="ascii") as file:
        lines = [line.rstrip("\n") for line in file if not line.startswith("#")]
    parts = [line.partition(" | ") for line in lines]
    return {name: text for name, _, text in parts}
