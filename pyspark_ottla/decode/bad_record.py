"""What is wrong with one record, as opposed to what stops a whole query."""

from __future__ import annotations

from pyspark_ottla import errors


class BadRecordError(Exception):
    """A key or a value that is not what the option says.

    `reason` completes the sentence "The value of the record at offset 7 of orders-0 ...".
    """

    def __init__(self, reason: str, hint: str = "", condition: str = errors.DECODE_FAILED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.condition = condition


class BadValueError(ValueError):
    """A decoded value that does not fit the type of its column; the text says which and why."""
