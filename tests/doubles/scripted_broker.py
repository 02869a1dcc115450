"""A broker that responds as a test scripts it: without I/O, and behind a real socket.

    broker = ScriptedBroker()
    broker.responses[ApiKey.LIST_GROUPS] = lambda header, request: ListGroupsResponse()
    with ScriptedServer(broker) as server:
        ...  # server.bootstrap

A response is a message, a list of messages to be given in turn, or a function of header and request
that returns a message; CLOSE closes the connection, SILENCE never responds, and bytes are sent as
they are.
"""

import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.framing import FrameSplitter
from ottla.protocol.headers import (
    RequestHeader,
    decode_request_body,
    decode_request_header,
    encode_response,
)
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.registry import API, ApiKey

CLOSE: Final = "close"
SILENCE: Final = "silence"

Script = Any  # what the module's text lists; a union would say less

MAX_FRAME_BYTES = 1 << 20


def all_versions() -> dict[int, tuple[int, int]]:
    return {key: (api.min_version, api.max_version) for key, api in API.items()}


def metadata_response(
    brokers: dict[int, tuple[str, int]],
    topics: dict[str, dict[int, int]] | None = None,
    controller_id: int = -1,
) -> MetadataResponse:
    """``topics`` gives the leader of each partition, -1 for none."""
    rows = [
        MetadataResponseTopic(
            name=name,
            partitions=[
                MetadataResponsePartition(
                    error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=4,
                )
                for index, leader in partitions.items()
            ],
        )
        for name, partitions in (topics or {}).items()
    ]
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node, host=host, port=port)
            for node, (host, port) in brokers.items()
        ],
        cluster_id="scripted",
        controller_id=controller_id,
        topics=rows,
    )


class ScriptedBroker:
    """Responds to frames; ``seen`` keeps every (header, request) that came."""

    def __init__(self) -> None:
        self.versions = all_versions()
        self.responses: dict[int, Script] = {}
        self.seen: list[tuple[RequestHeader, Message]] = []

    def names(self) -> list[str]:
        """The names of the requests that came, without those that set connections up."""
        setup = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        return [request.NAME for header, request in self.seen if header.api_key not in setup]

    def response(self, frame: bytes | bytearray) -> bytes | str:
        """The bytes of the response to one frame, or CLOSE or SILENCE."""
        header, position = decode_request_header(frame)
        if header.api_key == ApiKey.API_VERSIONS and header.api_key not in self.responses:
            low, high = self.versions[ApiKey.API_VERSIONS]
            if not low <= header.api_version <= high:
                return self._encode(header, 0, self._api_versions(ErrorCode.UNSUPPORTED_VERSION))
        request = decode_request_body(header, frame, position)
        self.seen.append((header, request))
        script = self.responses.get(header.api_key)
        if script is None:
            if header.api_key != ApiKey.API_VERSIONS:
                raise AssertionError(f"no response to {request.NAME} was scripted")
            script = self._api_versions(ErrorCode.NONE)
        if isinstance(script, list):
            script = script.pop(0) if len(script) > 1 else script[0]
        if callable(script):
            script = script(header, request)
        if isinstance(script, str | bytes):
            return script
        return self._encode(header, header.api_version, script)

    def _api_versions(self, code: int) -> ApiVersionsResponse:
        rows = [ApiVersion(key, low, high) for key, (low, high) in self.versions.items()]
        return ApiVersionsResponse(error_code=code, api_keys=rows)

    @staticmethod
    def _encode(header: RequestHeader, version: int, message: Message) -> bytes:
        parts = encode_response(header.api_key, version, header.correlation_id, message)
        return b"".join(part for part in parts if isinstance(part, bytes))


def describes_itself(
    server: "Callable[[], ScriptedServer]", topics: dict[str, dict[int, int]]
) -> Callable[[RequestHeader, MetadataRequest], MetadataResponse]:
    """A Metadata response with the one broker, 0, that leads everything; topics as requested."""

    def response(header: RequestHeader, request: MetadataRequest) -> MetadataResponse:
        wanted = topics
        if request.topics is not None:
            names = [topic.name for topic in request.topics]
            wanted = {name: topics[name] for name in names if name in topics}
        return metadata_response({0: ("127.0.0.1", server().port)}, wanted, controller_id=0)

    return response


class ScriptedServer:
    """The broker behind a socket of its own, one thread for each connection."""

    def __init__(self, broker: ScriptedBroker, ssl_context: ssl.SSLContext | None = None) -> None:
        self.broker = broker
        self.connections = 0
        self._ssl_context = ssl_context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "ScriptedServer":
        self._spawn(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.close_connections()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def close_connections(self) -> None:
        """Close what is open now, as a broker does with idle connections."""
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # closed by the other side before

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            self._open.append(connection)
        try:
            if self._ssl_context is not None:
                connection = self._ssl_context.wrap_socket(connection, server_side=True)
            with connection:
                self._exchange(connection)
        except (OSError, ProtocolError):
            return  # the client went away, or speaks something else

    def _exchange(self, connection: socket.socket) -> None:
        splitter = FrameSplitter(MAX_FRAME_BYTES)
        while data := connection.recv(65536):
            splitter.feed(data)
            while (frame := splitter.next_frame()) is not None:
                response = self.broker.response(frame)
                if response == CLOSE:
                    return
                if isinstance(response, bytes):
                    connection.sendall(response)
