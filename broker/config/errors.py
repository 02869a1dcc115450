"""The errors that wrong settings raise, and the place of the setting that an error names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.config.properties_file import Property


class ConfigError(Exception):
    """A setting is unknown, ill-typed or contradicts another one.

    The message is one sentence for the person who wrote the setting: where it stands, what is
    wrong, and what to write instead.
    """

    def at(self, origin: str) -> ConfigError:
        """The same error with the place where the setting stands in front."""
        return type(self)(f"{origin}: {self}")


class UnknownSetting(ConfigError):
    """No setting has this name."""


class AdvertisedAddressError(ConfigError):
    """Clients could not connect to what `advertised.listeners` names."""


class ConfigErrors(ConfigError):
    """Several settings are wrong; one line for each."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        lines = "".join(f"\n  {error}" for error in errors)
        super().__init__(f"{len(errors)} settings are wrong:{lines}")
        self.errors = tuple(errors)


def each_error(error: ConfigError) -> tuple[ConfigError, ...]:
    """The errors that one stands for."""
    return error.errors if isinstance(error, ConfigErrors) else (error,)


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raises nothing, the one error, or ConfigErrors with each message once."""
    different = list({str(error): error for error in errors}.values())
    if len(different) == 1:
        raise different[0]
    if different:
        raise ConfigErrors(different)


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
