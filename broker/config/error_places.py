"""Where the settings stand that an error is about."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.properties_file import Property

# Names of settings in a message: words with dots, and the one without.
_SETTING = re.compile(r"[a-z][\w-]*(?:\.[\w-]+)+|\blisteners\b")


def names_in(error: ConfigError) -> list[str]:
    """The words of a message that look like settings, in order."""
    return [word.rstrip(".") for word in _SETTING.findall(str(error))]


def located(error: ConfigError, given: Mapping[str, Property]) -> ConfigError:
    """The error with the place of the first setting that it names and that was given."""
    for name in names_in(error):
        if name in given:
            return error.at(given[name].origin)
    return error
