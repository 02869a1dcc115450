"""The errors that wrong settings raise."""

from __future__ import annotations

from collections.abc import Sequence


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
