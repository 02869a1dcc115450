"""How a client reaches the right broker: routes, retries and deadlines, without doing any I/O.

An operation is a generator. It yields a `Send` or a `Sleep`; the shell does that and sends the
response back in, or throws the ClientError it ended with. So the blocking and the asyncio client
behave the same, and tests need neither sockets nor time.
"""

from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

from ottla.protocol.client.cluster import Address, ClusterState, Leader
from ottla.protocol.client.errors import (
    ClientError,
    NoBrokersAvailableError,
    RequestTimedOutError,
    UnknownBrokerError,
    UnsupportedApiError,
)
from ottla.protocol.errors import RETRIABLE, ErrorCode, KafkaError
from ottla.protocol.message import Message, Struct
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import TopicPartition

# As Kafka's retry.backoff.ms and retry.backoff.max.ms.
RETRY_BACKOFF_MS = 100
RETRY_BACKOFF_MAX_MS = 1000

GROUP = 0
TRANSACTION = 1

# As Kafka's socket.connection.setup.timeout.ms; less when there are others to try in time.
CONNECT_TIMEOUT_MS = 10_000
_LEAST_CONNECT_TIMEOUT_MS = 1000


class Versions(NamedTuple):
    """Limits for the version of a request; None leaves it to what both sides have."""

    low: int | None = None
    high: int | None = None


ANY_VERSION = Versions()


class Send(NamedTuple):
    """Send the request to the broker there, connecting first if need be; returns its response."""

    address: Address
    request: Message
    versions: Versions
    connect_deadline_ms: int
    deadline_ms: int


class Sleep(NamedTuple):
    duration_ms: int


Step = Send | Sleep
T = TypeVar("T")
Operation = Generator[Step, Message | None, T]


class Route:
    """Where a request has to go, however often that changes."""

    def resolve(self, client: "Operations", deadline_ms: int) -> Operation[list[Address]]:
        """Addresses to try in this order; requests metadata when they are not known."""
        raise NotImplementedError

    def forget(self, state: ClusterState) -> None:
        """Drop from the picture what has just proved wrong."""


class AnyBroker(Route):
    def resolve(self, client: "Operations", deadline_ms: int) -> Operation[list[Address]]:
        del deadline_ms
        yield from ()
        return client.state.candidates()


class Node(Route):
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id

    def resolve(self, client: "Operations", deadline_ms: int) -> Operation[list[Address]]:
        if self.node_id not in client.state.brokers:
            yield from client.metadata([], deadline_ms)
        address = client.state.brokers.get(self.node_id)
        if address is None:
            known = ", ".join(map(str, sorted(client.state.brokers)))
            raise UnknownBrokerError(
                f"broker {self.node_id} is not in the cluster; the brokers there are: {known}"
            )
        return [address]

    def forget(self, state: ClusterState) -> None:
        state.brokers.pop(self.node_id, None)  # it may have moved


class Controller(Route):
    def resolve(self, client: "Operations", deadline_ms: int) -> Operation[list[Address]]:
        if client.state.controller_id not in client.state.brokers:
            yield from client.metadata([], deadline_ms)
        address = client.state.brokers.get(client.state.controller_id)
        if address is None:
            raise NoBrokersAvailableError("the cluster has no controller at the moment")
        return [address]

    def forget(self, state: ClusterState) -> None:
        state.forget_controller()


class LeaderOf(Route):
    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition

    def resolve(self, client: "Operations", deadline_ms: int) -> Operation[list[Address]]:
        leader = yield from client.leader(self.partition, deadline_ms)
        return [client.state.brokers[leader.node_id]]

    def forget(self, state: ClusterState) -> None:
        state.forget_topic(self.partition.topic)


class CoordinatorOf(Route):
    """Of a group (key type GROUP) or a transactional id (TRANSACTION)."""

    def __init__(self, key: str, key_type: int = GROUP) -> None:
        self.key = key
        self.key_type = key_type

    def resolve(self, client: "Operations", deadline_ms: int) -> Operation[list[Address]]:
        node_id = client.state.coordinator(self.key, self.key_type)
        if node_id is None or node_id not in client.state.brokers:
            node_id = yield from client.find_coordinator(self.key, self.key_type, deadline_ms)
        return [client.state.brokers[node_id]]

    def forget(self, state: ClusterState) -> None:
        state.forget_coordinator(self.key, self.key_type)


_ERROR_CODES = ("error_code", "partition_error_code")  # the latter in AddPartitionsToTxn


@cache
def _fields_with_codes(kind: type[Struct]) -> tuple[str, ...]:
    """The error codes of a struct, and its fields of other structs: their types are capitalized."""
    fields = [line.split()[:2] for line in kind.FIELDS]
    return tuple(
        name for name, kind in fields if name in _ERROR_CODES or kind.lstrip("[")[0].isupper()
    )


def error_codes(message: Struct) -> Iterator[int]:
    """Every error code in a response, at any depth."""
    for name in _fields_with_codes(type(message)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(message, name)
        if name in _ERROR_CODES:
            yield value
        elif isinstance(value, Struct):
            yield from error_codes(value)
        elif isinstance(value, list) and value and isinstance(value[0], Struct):
            for item in value:
                yield from error_codes(item)


def retriable_code(response: Message) -> int | None:
    """The error code to retry for; None when a part of the response is final.

    A NONE at the top of a response is ignored as long as codes follow inside it.
    """
    codes = list(error_codes(response))
    if len(codes) > 1 and codes[0] == ErrorCode.NONE and "error_code" in response.__slots__:
        codes = codes[1:]
    if codes and all(code in RETRIABLE for code in codes):
        return codes[0]
    return None


class Operations:
    """The operations of one client over its picture of the cluster.

    `now_ms` is a clock that only goes forward; `jitter` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        state: ClusterState,
        now_ms: Callable[[], int],
        *,
        request_timeout_ms: int,
        jitter: Callable[[], float],
    ) -> None:
        self.state = state
        self.now_ms = now_ms
        self.request_timeout_ms = request_timeout_ms
        self._jitter = jitter

    def send_once(
        self,
        request: Message,
        route: Route,
        deadline_ms: int,
        versions: Versions = ANY_VERSION,
    ) -> Operation[Message]:
        """One request to where the route leads now; other addresses only if it was not sent."""
        addresses = yield from route.resolve(self, deadline_ms)
        failures: list[ClientError] = []
        for index, address in enumerate(addresses):
            now_ms = self.now_ms()
            share_ms = (deadline_ms - now_ms) // (len(addresses) - index)
            connect_ms = min(CONNECT_TIMEOUT_MS, max(share_ms, _LEAST_CONNECT_TIMEOUT_MS))
            limit_ms = min(deadline_ms, now_ms + self.request_timeout_ms)
            connect_limit_ms = min(deadline_ms, now_ms + connect_ms)
            try:
                response = yield Send(address, request, versions, connect_limit_ms, limit_ms)
            except ClientError as failure:
                if failure.sent or not failure.retriable or self.now_ms() >= deadline_ms:
                    raise
                failures.append(failure)
            else:
                assert response is not None
                return response
        if len(failures) == 1:
            raise failures[0]
        reasons = "; ".join(map(str, failures))
        raise NoBrokersAvailableError(f"no broker could be reached for {request.NAME}: {reasons}")

    def call(
        self,
        request: Message,
        route: Route,
        deadline_ms: int,
        versions: Versions = ANY_VERSION,
        *,
        resend: bool | None = None,
    ) -> Operation[Message]:
        """Send, and send again while that may help, until the deadline.

        Retried are: brokers that cannot be reached; responses whose error codes are all
        retriable, after a new lookup of the broker; and, with `resend`, requests that may have
        been carried out without a response (the default for all but Produce, which could write
        twice). When time is up the last response is returned with its codes, or the last error
        raised.
        """
        if resend is None:
            resend = request.API_KEY != ApiKey.PRODUCE
        attempt = 0
        while True:
            response: Message | None = None
            failure: Exception
            try:
                response = yield from self.send_once(request, route, deadline_ms, versions)
            except (ClientError, KafkaError) as error:
                if not error.retriable or (isinstance(error, ClientError) and error.sent > resend):
                    raise
                failure = error
            else:
                code = retriable_code(response)
                if code is None:
                    return response
                failure = KafkaError(code)
            route.forget(self.state)
            pause_ms = self._backoff_ms(attempt)
            attempt += 1
            if self.now_ms() + pause_ms >= deadline_ms:
                if response is not None:
                    return response
                if attempt == 1:
                    raise failure
                raise RequestTimedOutError(
                    f"{request.NAME} was tried {attempt} times until time was up; "
                    f"the last failure was: {failure}"
                ) from failure
            yield Sleep(pause_ms)

    def _backoff_ms(self, attempt: int) -> int:
        pause = min(RETRY_BACKOFF_MS << min(attempt, 10), RETRY_BACKOFF_MAX_MS)
        return int(pause * (0.8 + 0.4 * self._jitter()))

    def metadata(
        self,
        topics: list[str] | None,
        deadline_ms: int,
        *,
        allow_auto_topic_creation: bool = False,
    ) -> Operation[MetadataResponse]:
        """Request the metadata of `topics` (None for all, [] for none) and keep the response."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(
            topics=wanted, allow_auto_topic_creation=allow_auto_topic_creation
        )
        low = 1 if allow_auto_topic_creation else 4  # from 4 on the client can forbid it
        response = yield from self.send_once(request, AnyBroker(), deadline_ms, Versions(low))
        assert isinstance(response, MetadataResponse)
        self.state.update(response)
        return response

    def leader(self, partition: TopicPartition, deadline_ms: int) -> Operation[Leader]:
        """The leader of a partition, from the cached metadata or by requests until there is one.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE (not within the time) or
        the topic's error code.
        """
        attempt = 0
        while True:
            leader = self.state.leader(partition)
            if leader is not None and leader.node_id in self.state.brokers:
                return leader
            response = yield from self.metadata([partition.topic], deadline_ms)
            leader = self.state.leader(partition)
            if leader is not None and leader.node_id in self.state.brokers:
                return leader
            code = _why_no_leader(response, partition)
            pause_ms = self._backoff_ms(attempt)
            attempt += 1
            if code not in RETRIABLE or self.now_ms() + pause_ms >= deadline_ms:
                raise KafkaError(code, f"no leader of {partition} is known")
            yield Sleep(pause_ms)

    def find_coordinator(self, key: str, key_type: int, deadline_ms: int) -> Operation[int]:
        """The node id of the coordinator; raises KafkaError when there is none."""
        response = yield from self._find_coordinator(key, key_type, deadline_ms)
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(found.error_code, found.error_message or f"no coordinator of {key!r}")
        self.state.set_coordinator(key, key_type, found.node_id, Address(found.host, found.port))
        return found.node_id

    def _find_coordinator(
        self, key: str, key_type: int, deadline_ms: int
    ) -> Operation[FindCoordinatorResponse]:
        """With the versions that take a list of keys, or else those that take one."""
        try:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            response = yield from self.send_once(request, AnyBroker(), deadline_ms, Versions(4))
        except UnsupportedApiError:
            request = FindCoordinatorRequest(key=key, key_type=key_type)
            versions = Versions(0 if key_type == GROUP else 1, 3)
            response = yield from self.send_once(request, AnyBroker(), deadline_ms, versions)
        assert isinstance(response, FindCoordinatorResponse)
        return response


def _why_no_leader(response: MetadataResponse, partition: TopicPartition) -> int:
    for topic in response.topics:
        if topic.name != partition.topic:
            continue
        if topic.error_code != ErrorCode.NONE:
            return topic.error_code
        for row in topic.partitions:
            if row.partition_index == partition.partition:
                return row.error_code or ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
