"""What the questions to a cluster have in common, as the modules that put them use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.errors import RETRIABLE, ErrorCode
from ottla.protocol.messages.metadata import MetadataResponse
from pyspark_ottla.cluster.client_errors import refused
from pyspark_ottla.options.client_options import ClientOptions

T = TypeVar("T")


class ClusterCalls(Protocol):
    """Requests with retries; `KafkaCluster` is the implementation."""

    client: BlockingClient
    options: ClientOptions
    lookup_retries: int
    lookup_retry_interval_ms: int

    def deadline(self) -> float:
        """The time on the monotonic clock until which a call may be retried."""

    def call_with_retries(self, what: str, call: Callable[[int], T], deadline: float) -> T:
        """`call(timeout in ms)`, retried until the deadline while brokers cannot be reached."""

    def sleep(self, seconds: float) -> None:
        """A pause between two tries."""

    def wait(self, deadline: float) -> bool:
        """A pause between tries; false if the deadline does not leave time for another."""

    def metadata(
        self, topics: list[str] | None, deadline: float, *, create: bool = False
    ) -> MetadataResponse:
        """The metadata of these topics (None for all); `create` lets the brokers create them."""


def call_until_accepted(
    cluster: ClusterCalls, what: str, call: Callable[[int], T], code_of: Callable[[T], int]
) -> T:
    """As `call_with_retries`, for `kafka.default.api.timeout.ms`, also while the error code of the
    response is one that passes: a client retries for `kafka.request.timeout.ms` only, and a
    coordinator may load its log for longer. Raises ConnectorError."""
    latest = time.monotonic() + cluster.options.api_timeout_ms / 1000
    deadline = cluster.deadline()
    while True:
        response = cluster.call_with_retries(what, call, deadline)
        code = code_of(response)
        if code == ErrorCode.NONE:
            return response
        deadline = latest  # that of the first contact is over
        if code not in RETRIABLE or not cluster.wait(deadline):
            raise refused(what, code)
