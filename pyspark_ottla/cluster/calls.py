"""What the questions to a cluster have in common, as the modules that put them use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.messages.metadata import MetadataResponse
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

    def metadata(
        self, topics: list[str] | None, deadline: float, *, create: bool = False
    ) -> MetadataResponse:
        """The metadata of these topics (None for all); `create` lets the brokers create them."""
