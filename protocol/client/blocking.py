"""The blocking client: sockets and TLS around the sans-IO connection and operations.

For the command line and for the Spark connector's tasks. Not thread-safe: one client a thread.
"""

import random
import time
from collections import OrderedDict
from types import TracebackType
from typing import NamedTuple, TypeVar

from ottla.protocol.client.blocking_connection import (
    BlockingConnection,
    create_ssl_context,
    monotonic_ms,
)
from ottla.protocol.client.cluster import Address, ClusterState, Leader, parse_bootstrap
from ottla.protocol.client.errors import ClientError, NoBrokersAvailableError
from ottla.protocol.client.operations import (
    ANY_VERSION,
    GROUP,
    AnyBroker,
    Controller,
    CoordinatorOf,
    LeaderOf,
    Node,
    Operation,
    Operations,
    Route,
    Send,
    Versions,
)
from ottla.protocol.client.security import Security
from ottla.protocol.message import Message
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.topics import TopicPartition

DEFAULT_REQUEST_TIMEOUT_MS = 30_000  # as Kafka's request.timeout.ms

# Each costs a descriptor on both sides; beyond this the one unused for longest is closed.
MAX_CONNECTIONS = 64

T = TypeVar("T")


class Begun(NamedTuple):
    """A request in flight."""

    connection: BlockingConnection
    correlation_id: int | None
    deadline_ms: int


class BlockingClient:
    """A client of a whole cluster: metadata and leaders kept, requests sent where they belong.

    `bootstrap` is one or more "host:port" with commas between. Responses come back with whatever
    error codes are in them; exceptions are ClientError (no response), KafkaError (the cluster
    has no broker for the request) and ProtocolError (the request does not fit into its version).
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str | None = "ottla",
        security: Security | None = None,
        request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.state = ClusterState(parse_bootstrap(bootstrap))
        self.request_timeout_ms = request_timeout_ms
        self._client_id = client_id
        self._security = security
        self._ssl_context = (
            create_ssl_context(security) if security is not None and security.uses_tls else None
        )
        self._max_connections = max_connections
        self._connections: OrderedDict[Address, BlockingConnection] = OrderedDict()
        self._operations = Operations(
            self.state, monotonic_ms, request_timeout_ms=request_timeout_ms, jitter=random.random
        )

    def __enter__(self) -> "BlockingClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the client opens new ones if it is used again."""
        while self._connections:
            self._connections.popitem()[1].close()

    def metadata(
        self,
        topics: list[str] | None = None,
        *,
        allow_auto_topic_creation: bool = False,
        timeout_ms: int | None = None,
    ) -> MetadataResponse:
        """Ask about `topics` (None for all, [] for the brokers only): each known broker once."""
        deadline_ms = self._deadline(timeout_ms)
        return self._run(
            self._operations.metadata(
                topics, deadline_ms, allow_auto_topic_creation=allow_auto_topic_creation
            )
        )

    def leader(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> Leader:
        """(node id, epoch) of the leader, looked up if not known. Raises KafkaError without one."""
        return self._run(self._operations.leader(partition, self._deadline(timeout_ms)))

    def forget_leader(self, partition: TopicPartition) -> None:
        """Request the leaders of this topic again next time: the one we knew is not it any more."""
        self.state.forget_topic(partition.topic)

    def send(
        self,
        node_id: int | None,
        request: Message,
        *,
        timeout_ms: int | None = None,
        versions: Versions = ANY_VERSION,
    ) -> Message:
        """One request to a broker (None: any), not retried once it was sent.

        A Produce with acks=0 gets an empty response at once.
        """
        route = AnyBroker() if node_id is None else Node(node_id)
        return self._run(
            self._operations.send_once(request, route, self._deadline(timeout_ms), versions)
        )

    def begin(
        self,
        node_id: int,
        request: Message,
        *,
        timeout_ms: int | None = None,
        versions: Versions = ANY_VERSION,
    ) -> Begun:
        """Send one request to a broker that the metadata has, without waiting for its response.

        Several can be in flight; the broker responds in their order. Raises a ClientError.
        """
        deadline_ms = self._deadline(timeout_ms)
        address = self.state.brokers.get(node_id)
        if address is None:
            raise NoBrokersAvailableError(f"broker {node_id} is not in the metadata")
        connection = self._connection(address, deadline_ms)
        return Begun(
            connection, connection.begin(request, deadline_ms, versions=versions), deadline_ms
        )

    def complete(self, begun: Begun) -> Message:
        """The response; raises a ClientError. A Produce with acks=0 gets an empty one at once."""
        if begun.correlation_id is None:
            return ProduceResponse()
        return begun.connection.complete(begun.correlation_id, begun.deadline_ms)

    def call(
        self,
        request: Message,
        route: Route | None = None,
        *,
        timeout_ms: int | None = None,
        versions: Versions = ANY_VERSION,
        resend: bool | None = None,
    ) -> Message:
        """Send to where `route` leads (None: any broker) and try again while that may help.

        See `operations.Operations.call` for what is retried.
        """
        return self._run(
            self._operations.call(
                request, route or AnyBroker(), self._deadline(timeout_ms), versions, resend=resend
            )
        )

    def call_once(
        self,
        request: Message,
        route: Route | None = None,
        *,
        timeout_ms: int | None = None,
        versions: Versions = ANY_VERSION,
    ) -> Message:
        """Like `call`, without retries: returns the first response, whatever its error codes."""
        deadline_ms = self._deadline(timeout_ms)
        return self._run(
            self._operations.send_once(request, route or AnyBroker(), deadline_ms, versions)
        )

    def call_controller(self, request: Message, *, timeout_ms: int | None = None) -> Message:
        """`call` to the controller, wherever it is."""
        return self.call(request, Controller(), timeout_ms=timeout_ms)

    def call_leader(
        self, partition: TopicPartition, request: Message, *, timeout_ms: int | None = None
    ) -> Message:
        """`call` to the leader of a partition."""
        return self.call(request, LeaderOf(partition), timeout_ms=timeout_ms)

    def call_coordinator(
        self,
        key: str,
        request: Message,
        *,
        key_type: int = GROUP,
        timeout_ms: int | None = None,
    ) -> Message:
        """`call` to the coordinator of a group, or of a transactional id with that key type."""
        return self.call(request, CoordinatorOf(key, key_type), timeout_ms=timeout_ms)

    def api_versions(self, node_id: int | None = None) -> dict[int, tuple[int, int]]:
        """Lowest and highest version by API key that a broker (None: any) offers to us."""
        deadline_ms = self._deadline(None)
        route = AnyBroker() if node_id is None else Node(node_id)
        address = self._run(route.resolve(self._operations, deadline_ms))[0]
        return dict(self._connection(address, deadline_ms).protocol.versions)

    def _deadline(self, timeout_ms: int | None) -> int:
        return monotonic_ms() + (self.request_timeout_ms if timeout_ms is None else timeout_ms)

    def _run(self, operation: Operation[T]) -> T:
        response: Message | None = None
        failure: ClientError | None = None
        while True:
            try:
                step = operation.send(response) if failure is None else operation.throw(failure)
            except StopIteration as stop:
                result: T = stop.value
                return result
            response, failure = None, None
            if isinstance(step, Send):
                try:
                    response = self._send(step)
                except ClientError as error:
                    failure = error
            else:
                time.sleep(step.duration_ms / 1000)

    def _send(self, step: Send) -> Message:
        connection = self._connection(step.address, step.connect_deadline_ms)
        response = connection.request(step.request, step.deadline_ms, versions=step.versions)
        return ProduceResponse() if response is None else response

    def _connection(self, address: Address, deadline_ms: int) -> BlockingConnection:
        connection = self._connections.pop(address, None)
        if connection is not None and not connection.is_usable():
            connection.close()
            connection = None
        if connection is None:
            while len(self._connections) >= self._max_connections:
                self._connections.popitem(last=False)[1].close()
            connection = BlockingConnection(
                address,
                client_id=self._client_id,
                security=self._security,
                ssl_context=self._ssl_context,
            )
            connection.connect(deadline_ms)
        self._connections[address] = connection
        return connection
