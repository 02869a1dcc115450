"""Parameters of a page: the query of a URL, or the JSON of a change; both are checked here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

# A page sends a handful of short parameters.
_MAX_PARAMETERS = 16
_MAX_ID = (1 << 31) - 1


class InvalidParameter(Exception):
    """A parameter that is missing or invalid; the text names it."""


class NotFound(Exception):
    """A name or number that leads nowhere; the text is a sentence."""


class Parameters:
    """Named values, typed; each method raises InvalidParameter."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    @classmethod
    def of_query(cls, query: str) -> Parameters:
        try:
            given = parse_qs(
                query, max_num_fields=_MAX_PARAMETERS, errors="strict", keep_blank_values=True
            )
        except ValueError:
            raise InvalidParameter("the query cannot be read") from None
        return cls({name: values[-1] for name, values in given.items()})

    @classmethod
    def of_json(cls, body: bytes) -> Parameters:
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            raise InvalidParameter("the body is not JSON") from None
        if not isinstance(given, dict):
            raise InvalidParameter("the body is not a JSON object")
        return cls(given)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name, default)
        if value is None:
            raise InvalidParameter(f"the parameter {name} is missing")
        if not isinstance(value, str):
            raise InvalidParameter(f"{name} is not a text")
        return _checked(name, value)

    def optional_text(self, name: str) -> str | None:
        """None for null, and where there is none."""
        return None if self._given.get(name) is None else self.text(name)

    def number(self, name: str, default: int | None, low: int, high: int) -> int:
        """A whole number, moved into its range."""
        value = self._given.get(name)
        if value is None:
            value = default
        if isinstance(value, str):
            if not value.removeprefix("-").isdecimal() or not value.isascii() or len(value) > 19:
                raise InvalidParameter(f"{name} is not a whole number")
            value = int(value)
        if value is None:
            raise InvalidParameter(f"the parameter {name} is missing")
        if type(value) is not int:
            raise InvalidParameter(f"{name} is not a whole number")
        return max(low, min(value, high))

    def id(self, name: str) -> int:
        """The number of a broker or partition in an address; -1 where there is none.

        Raises NotFound for what can be no such number: an address that names it leads nowhere."""
        value = self._given.get(name, "-1")
        if value == "-1":
            return -1
        if not isinstance(value, str) or not (value.isascii() and value.isdigit()):
            raise NotFound(f"There is no {name} {str(value)[:50]}.")
        if len(value) > 10 or int(value) > _MAX_ID:
            raise NotFound(f"There is no {name} {value[:50]}.")
        return int(value)

    def exact(self, name: str, low: int, high: int) -> int:
        """A whole number of a change, which is refused beyond its range."""
        value = self.number(name, None, -(1 << 63), (1 << 63) - 1)
        if not low <= value <= high:
            raise InvalidParameter(f"{name} is not between {low} and {high}")
        return value

    def texts(self, name: str, most: int) -> dict[str, str | None]:
        """An object of texts, or of null."""
        value = self._given.get(name, {})
        if not isinstance(value, dict) or not all(
            isinstance(each, str) or each is None for each in value.values()
        ):
            raise InvalidParameter(f"{name} is not an object of texts")
        if len(value) > most:
            raise InvalidParameter(f"{name} has more than {most} entries")
        for key, each in value.items():
            _checked(name, key)
            _checked(name, each or "")
        return value

    def rows(self, name: str, most: int) -> list[Parameters]:
        """A list of objects."""
        value = self._given.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise InvalidParameter(f"{name} is not a list of objects")
        if len(value) > most:
            raise InvalidParameter(f"{name} has more than {most} entries")
        return [Parameters(each) for each in value]

    def flag(self, name: str) -> bool:
        value = self._given.get(name, False)
        if type(value) is not bool:
            raise InvalidParameter(f"{name} is not true or false")
        return value

    def confirmed(self, name: str) -> str:
        """The text of `name`, which `confirm` must repeat: what is deleted is typed by hand."""
        value = self.text(name)
        if self.text("confirm", "") != value:
            raise InvalidParameter(f"confirm is not the same as {name}: type {value[:249]}")
        return value


def _checked(name: str, value: str) -> str:
    """JSON can have one half of a surrogate pair, which no request of the protocol takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(f"{name} is not a text in UTF-8") from None
    return value
