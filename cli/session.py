"""Common parts of all commands that connect to a cluster: options, client, errors.

    @app.command("list")
    @connected
    def list_topics(session: Session, internal: bool = False) -> None:
        session.client.metadata()

`connected` adds --bootstrap, --command-config, --timeout and --json to the command line, and
converts errors to one sentence and an exit code.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar, get_type_hints

import typer

from ottla.cli.client_properties import mistyped, read_client_properties
from ottla.cli.client_security import client_security
from ottla.cli.health import MAX_TIMEOUT_SECONDS
from ottla.cli.output import (
    FAILED,
    UNAUTHENTICATED,
    UNREACHABLE,
    USAGE,
    Failure,
    note,
    print_error,
    usage,
)
from ottla.protocol.client.errors import (
    AuthenticationError,
    ClientError,
    UnknownBrokerError,
    UnsupportedApiError,
)
from ottla.protocol.client.operations import (
    ANY_VERSION,
    AnyBroker,
    Node,
    Route,
    Versions,
    retriable_code,
)
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError, UnencodableError
from ottla.protocol.message import Message

if TYPE_CHECKING:
    from ottla.protocol.client.blocking import BlockingClient
    from ottla.protocol.client.cluster import Leader
    from ottla.protocol.client.security import Security
    from ottla.protocol.messages.metadata import MetadataResponse
    from ottla.protocol.topics import TopicPartition

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Message)

# Retried until an election or the loading of a coordinator is over.
_RETRIED = frozenset(
    (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    )
)
_PAUSE_SECONDS = 0.1
# Between two attempts to reach a cluster that does not respond.
_AWAY_PAUSE_SECONDS = 1.0

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        envvar="OTTLA_BOOTSTRAP",
        help="Bootstrap brokers: host:port,...",
        show_default=DEFAULT_BOOTSTRAP,
    ),
]
CommandConfigOption = Annotated[
    str,
    typer.Option(
        "--command-config",
        envvar="OTTLA_COMMAND_CONFIG",
        help="File of client properties: security.protocol, sasl.mechanism, ssl.ca.location, ...",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", help="Request timeout in seconds."),
]
HttpOption = Annotated[
    list[str] | None,
    typer.Option(
        "--http",
        help="HTTP port of a broker, host:port; repeatable. None: ottla.metrics.address.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_CONNECTION: dict[str, tuple[object, object]] = {
    "bootstrap": (BootstrapOption, None),
    "command_config": (CommandConfigOption, ""),
    "timeout": (TimeoutOption, 30.0),
    "json": (JsonOption, False),
}


class Session:
    """The cluster of one command; the first request connects."""

    def __init__(
        self,
        bootstrap: str | None,
        command_config: str,
        timeout: float,
        json: bool,
        *,
        notes: bool = True,
    ) -> None:
        """Without `bootstrap` the address is that of the file, else the default one. `notes`:
        whether names in the file that look mistyped are noted."""
        self.json = json
        # Not true for NaN either.
        if not 0 <= timeout <= MAX_TIMEOUT_SECONDS:
            raise usage(f"--timeout {timeout:g} is not a number of seconds.")
        self.timeout_ms = max(1, int(timeout * 1000))
        self.properties = read_client_properties(command_config) if command_config else {}
        if bootstrap is None:  # an empty one is wrong usage: a script meant another cluster
            bootstrap = self.properties.get("bootstrap.servers") or DEFAULT_BOOTSTRAP
        self.bootstrap = bootstrap
        for name, meant in mistyped(self.properties) if notes else ():
            note(f"ottla: --command-config: {name} has no effect; did you mean {meant}?")
        self._client: BlockingClient | None = None
        self._security: Security | None = None
        self._files = ExitStack()  # what `security` names
        self._waits = self._is_away = False

    @property
    def security(self) -> Security:
        """The security settings of the file of --command-config."""
        if self._security is None:
            self._security = client_security(self.properties, self._files)
        return self._security

    @property
    def client(self) -> BlockingClient:
        """The one client of the command."""
        if self._client is None:
            self._client = self.connect_to(self.bootstrap)
            # Not retried: a wrong address is reported at once, not after the timeout.
            self._client.metadata([])
        return self._client

    def connect_to(self, bootstrap: str) -> BlockingClient:
        """Another client with the same settings; the caller closes it."""
        from ottla.protocol.client.blocking import BlockingClient  # sockets and TLS: not for --help

        try:
            return BlockingClient(
                bootstrap,
                client_id=self.properties.get("client.id", "ottla-cli"),
                security=self.security,
                request_timeout_ms=self.timeout_ms,
            )
        except AuthenticationError as error:  # nothing is connected yet: a file of TLS
            raise usage(f"--command-config: {error}") from None
        except ValueError as error:
            raise usage(f"--bootstrap: {error}") from None

    def call(
        self,
        response_type: type[ResponseT],
        request: Message,
        route: Route | None = None,
        *,
        versions: Versions = ANY_VERSION,
    ) -> ResponseT:
        """Sends a request and returns its response, which has the type `response_type`.

        Retries only while leaders, controller or coordinator move. Kafka's clients retry more
        codes, such as an unknown topic; a command reports those at once.
        """
        return self._when_reachable(
            lambda: self._call(response_type, request, route or AnyBroker(), versions)
        )

    def _call(
        self, response_type: type[ResponseT], request: Message, where: Route, versions: Versions
    ) -> ResponseT:
        deadline = time.monotonic() + self.timeout_ms / 1000
        while True:
            try:
                response = self.client.call_once(request, where, versions=versions)
                code = retriable_code(response)
                assert isinstance(response, response_type)
            except KafkaError as error:
                code = error.code
                if code not in _RETRIED or time.monotonic() >= deadline:
                    raise
            except ClientError:
                where.forget(self.client.state)
                raise
            else:
                if code not in _RETRIED:
                    return response
                if time.monotonic() >= deadline:
                    if self._waits:
                        raise KafkaError(code)
                    return response
            where.forget(self.client.state)
            time.sleep(_PAUSE_SECONDS)

    def leader(self, partition: TopicPartition) -> Leader:
        """The leader of a partition, looked up if needed. Raises KafkaError without one."""
        return self._when_reachable(lambda: self.client.leader(partition))

    def metadata(self, topics: list[str]) -> MetadataResponse:
        """The metadata of `topics`."""
        return self._when_reachable(lambda: self.client.metadata(topics))

    @contextmanager
    def waiting_for_cluster(self) -> Iterator[None]:
        """Inside, `call`, `leader` and `metadata` wait without end for brokers that are away.

        For commands that run until Ctrl-C: brokers restart. The cluster has to respond at first.
        """
        assert self.client
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _when_reachable(self, attempt: Callable[[], T]) -> T:
        while True:
            try:
                result = attempt()
            except (ClientError, KafkaError) as error:
                if not self._waits or not _is_away(error):
                    raise
                if not self._is_away:
                    note(f"ottla: cannot reach the cluster, waiting for it: {error}")
                self._is_away = True
                time.sleep(_AWAY_PAUSE_SECONDS)
                continue
            if self._is_away:
                note("ottla: the cluster responds again")
            self._is_away = False
            return result

    def broker_ids(self) -> list[int]:
        """The ids of the live brokers, sorted."""
        return sorted(row.node_id for row in self.client.metadata([]).brokers)

    def node(self, broker_id: int) -> Node:
        """The route to one broker."""
        return Node(broker_id)

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()
        self._files.close()


def _is_away(error: ClientError | KafkaError) -> bool:
    """Whether a later attempt may succeed, without anything being done about it."""
    return error.code in _RETRIED if isinstance(error, KafkaError) else error.retriable


def connected(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the connection options to a command, which gets a Session as first argument."""

    def command(**options: object) -> None:
        connection = [options.pop(name) for name in _CONNECTION]

        def run() -> None:
            session = Session(*connection)  # type: ignore[arg-type]  # typer checked them
            try:
                function(session, **options)
            finally:
                session.close()

        reported(run, as_json=bool(connection[-1]))

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    hints = get_type_hints(function, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]
    ]
    parameters = [*own, *(_option(name, *kind) for name, kind in _CONNECTION.items())]
    # Typer reads the options from here; the type of a function does not declare the attribute.
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


def reported(run: Callable[[], None], *, as_json: bool = False) -> None:
    """Runs a command; an exception becomes a sentence on standard error, or with `as_json` a JSON
    object, and an exit code."""

    def ended(message: str, code: int) -> typer.Exit:
        try:
            sys.stdout.flush()
        except OSError:  # why the command failed matters more than that its output is lost
            _drop_output()
        print_error(message, code, as_json=as_json)
        return typer.Exit(code)

    try:
        run()
        sys.stdout.flush()
    except Failure as failure:
        raise ended(str(failure), failure.code) from None
    except UnsupportedApiError as error:
        raise ended(str(error), FAILED) from None
    except AuthenticationError as error:
        raise ended(f"authentication failed: {error}", UNAUTHENTICATED) from None
    except UnknownBrokerError as error:  # the cluster was reached, and has no such broker
        raise ended(str(error), FAILED) from None
    except ClientError as error:
        raise ended(f"cannot reach the cluster: {error}", UNREACHABLE) from None
    except KafkaError as error:
        raise ended(explain(error.code, error.message), FAILED) from None
    except UnencodableError as error:
        raise ended(f"a value of the command does not fit: {error}.", USAGE) from None
    except ProtocolError as error:
        raise ended(
            f"this broker is too old or too new for this command: {error}", FAILED
        ) from None
    except BrokenPipeError:
        # The reader of the pipe has exited.
        _drop_output()
        raise typer.Exit(0) from None
    except OSError as error:
        # Mostly the output, which cannot be written to a full disk.
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        raise ended(f"{where}{error.strerror or error}.", FAILED) from None


def _drop_output() -> None:
    """The flush of the interpreter at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _option(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


# The remedy for an error code, where Kafka's name is not enough.
_ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "see `ottla topics list`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "add --if-not-exists to accept it",
    ErrorCode.INVALID_REPLICATION_FACTOR: "it cannot be above the number of brokers; "
    "see `ottla cluster info`",
    ErrorCode.NOT_CONTROLLER: "a new controller is being elected; retry",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; see `ottla groups describe`",
    ErrorCode.GROUP_ID_NOT_FOUND: "see `ottla groups list`",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members; stop them first",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "see `ottla transactions list`",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "see `ottla partitions reassign list`",
    ErrorCode.OFFSET_OUT_OF_RANGE: "see `ottla topics offsets` for the first and the last offset",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator is not available yet; retry",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this user is not authorized",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user is not authorized",
    ErrorCode.SECURITY_DISABLED: "set authorizer.class.name",
    ErrorCode.RESOURCE_NOT_FOUND: "see `ottla users list`",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key on all brokers",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in by SASL or with a certificate, and "
    "not with a token",
}

#: In the broker's message about a topic that exists, but not for long.
MARKED_FOR_DELETION = "marked for deletion"


def explain(code: int, message: str | None = None) -> str:
    """The text of an error code: the broker's message, Kafka's name of the code, the remedy."""
    name = KafkaError(code).name
    advice = _ADVICE.get(code, "")
    words = (message or "").rstrip(".")
    if code == ErrorCode.TOPIC_ALREADY_EXISTS and MARKED_FOR_DELETION in words:
        advice = "create it when it is gone; `ottla doctor` names what the deletion waits for"
    if advice in words:  # the broker's message has it already
        advice = ""
    if words and words != name:
        text = f"{words} ({name})"
    else:
        text = name
    return f"{text}: {advice}." if advice else f"{text}."


_MISSING = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "topic",
    ErrorCode.GROUP_ID_NOT_FOUND: "group",
}


def sentence(code: int, what: str, message: str | None = None) -> str:
    """`explain` of the subject `what`, such as "topic orders"; most brokers send no message for one
    that does not exist."""
    kind, _, name = what.partition(" ")
    if not message and kind == _MISSING.get(code):
        message = f"The {kind} '{name}' does not exist"
    return f"{what}: {explain(code, message)}"


def check(code: int, what: str, message: str | None = None) -> None:
    """Raises Failure unless `code` is NONE; `what` names the subject."""
    if code != ErrorCode.NONE:
        raise Failure(sentence(code, what, message))
