"""The exceptions of the controller, and `ApiError`: error code and message of a response."""

from typing import NamedTuple


class ControllerMoved(Exception):
    """Another controller was elected: a fenced write failed, nothing was written.

    Mirrors Kafka's `ControllerMovedException`.
    """


class StateChangeFailed(Exception):
    """A state change of a partition or replica failed; mirrors `StateChangeFailedException`."""


class ApiError(NamedTuple):
    """Error code and message of a row in a response; the message is None without an error."""

    code: int
    message: str | None = None


OK = ApiError(0)
