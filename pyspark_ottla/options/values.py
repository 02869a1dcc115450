"""Typed look-ups in an option dict, each with an error text that names the option and the fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

_DURATION = re.compile(r"\s*(\d{1,18})\s*([a-z]*)\s*")
# The units of Spark's configuration strings; a bare number is milliseconds.
_UNIT_MS = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "seconds": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "minutes": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "hours": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "days": 86_400_000,
}


def near_matches(name: str, known: Iterable[str]) -> str:
    """`Did you mean ...?` for a mistyped name, or nothing if none comes close."""
    spelling = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(spelling), n=3, cutoff=0.6)
    return f"Did you mean {' or '.join(spelling[match] for match in close)}? " if close else ""


def invalid(option: str, value: str, expected: str) -> ConnectorError:
    shown = value if len(value) <= 100 else value[:100] + "..."
    return ConnectorError(
        errors.INVALID_OPTION,
        f"The option {option} has the value {shown!r}",
        f"Expected {expected}",
    )


def plain_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case. Those of a SQL table come with `option.` in front,
    some of them without it as well."""
    prefix = "option."
    lower = {name.lower(): value for name, value in options.items()}
    prefixed = {name.removeprefix(prefix): value for name, value in lower.items()}
    return prefixed | {name: lower[name] for name in lower if not name.startswith(prefix)}


class OptionReader:
    """Reads options out of a dict whose keys are in lower case; absent and empty are the same."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {key.lower(): value for key, value in values.items()}

    @property
    def is_empty(self) -> bool:
        return not self._values

    def text(self, option: str) -> str | None:
        value = self._values.get(option.lower())
        return None if value is None or not value.strip() else value.strip()

    def given(self, options: Sequence[str]) -> list[str]:
        """Those of `options` that are present, even if empty."""
        return [option for option in options if option.lower() in self._values]

    def integer(
        self, option: str, default: int | None = None, *, minimum: int, maximum: int = LONG_MAX
    ) -> int | None:
        value = self.text(option)
        if value is None:
            return default
        if not re.fullmatch(r"[+-]?\d{1,19}", value, re.ASCII):
            raise invalid(option, value, f"a whole number of at least {minimum}")
        number = int(value)
        if not minimum <= number <= maximum:
            bound = f"at least {minimum}" if number < minimum else f"at most {maximum}"
            raise invalid(option, value, f"a whole number of {bound}")
        return number

    def integer_or(
        self, option: str, default: int, *, minimum: int, maximum: int = LONG_MAX
    ) -> int:
        number = self.integer(option, default, minimum=minimum, maximum=maximum)
        assert number is not None
        return number

    def boolean(self, option: str, default: bool) -> bool:
        value = self.text(option)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise invalid(option, value, "true or false")
        return value.lower() == "true"

    def choice(self, option: str, default: str, choices: Sequence[str]) -> str:
        value = self.text(option)
        if value is None:
            return default
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise invalid(option, value, f"one of {', '.join(choices)}")

    def duration_ms(self, option: str, default: int) -> int:
        value = self.text(option)
        if value is None:
            return default
        match = _DURATION.fullmatch(value.lower())
        if match is None or match.group(2) not in _UNIT_MS:
            raise invalid(option, value, "a time such as 500ms, 30s, 15m or 2h")
        return min(int(match.group(1)) * _UNIT_MS[match.group(2)], LONG_MAX)

    def refuse_unknown(self, known: Sequence[str], tolerated: Iterable[str], where: str) -> None:
        """Fails on the first name that is neither known nor tolerated nor begins with `kafka.`."""
        accepted = {name.lower() for name in known} | {name.lower() for name in tolerated}
        for name in sorted(self._values):
            if name in accepted or name.startswith("kafka."):
                continue
            hint = near_matches(name, known)
            raise ConnectorError(
                errors.UNKNOWN_OPTION,
                f"There is no option {name!r} for {where}",
                f"{hint}The options are {', '.join(known)} and kafka.*",
            )
