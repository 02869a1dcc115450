"""The controller's own exceptions; what clients get is an ``ApiError`` with Kafka's code."""

from typing import NamedTuple


class ControllerMoved(Exception):
    """Another controller has been elected: a fenced write was refused, nothing was changed."""


class StateChangeFailed(Exception):
    """A partition or replica could not be moved to the wanted state; the message says why."""


class ApiError(NamedTuple):
    """One row of an answer: Kafka's error code and a message in plain words, None when no error."""

    code: int
    message: str | None = None


OK = ApiError(0)
