"""Clients by what they connect with, kept in the process from task to task.

Spark's Python workers live on between tasks, batches and queries, so a connection opened for one
micro-batch serves the next. A client is used by one thread at a time: a task takes it out of the
cache and puts it back when it is done.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.security import Security
from pyspark_ottla import errors
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import ClientOptions
from pyspark_ottla.options.options import SourceOptions
from pyspark_ottla.options.security_options import SecurityOptions, resolve_all

if TYPE_CHECKING:
    from pyspark_ottla.options.oauth_options import OAuthOptions

# Idle clients in one process: a writing task uses two, and a worker rarely talks to more than a
# few clusters in turn.
IDLE_CLIENTS_MAX = 6

# Oldest first; the same key may come more than once. The process id is there because Spark forks
# its workers: a connection must not be used by parent and child.
_idle: deque[tuple[int, ClientOptions, BlockingClient]] = deque()
# The driver ends transactions in several threads, which take clients at the same time.
_idle_lock = threading.Lock()


@contextmanager
def _files(security: SecurityOptions) -> Iterator[dict[str, str | None]]:
    """File names for the PEM texts given inline, for as long as it takes to read them in."""
    given = {
        "ca_file": (security.ca_location, security.ca_pem),
        "certificate_file": (security.certificate_location, security.certificate_pem),
        "key_file": (security.key_location, security.key_pem),
    }
    with ExitStack() as stack:
        names: dict[str, str | None] = {}
        for name, (location, text) in given.items():
            names[name] = location or None
            if text and not location:
                # Only the owner can read what mkstemp makes, which NamedTemporaryFile uses.
                file = stack.enter_context(tempfile.NamedTemporaryFile("w", encoding="utf-8"))
                file.write(text.replace("\\n", "\n"))  # PEM in one line, as environments hold it
                file.flush()
                names[name] = file.name
        yield names


def _token_source(options: OAuthOptions) -> Callable[[], str]:
    from pyspark_ottla.cluster.oauth_tokens import TokenSource

    return TokenSource(options)


def connect(options: ClientOptions) -> BlockingClient:
    """A new client; opens no connection yet. Secrets are looked up here, in this process."""
    security = resolve_all(options.security)
    with _files(security) as names:
        try:
            return BlockingClient(
                options.bootstrap,
                client_id=options.client_id,
                request_timeout_ms=options.request_timeout_ms,
                security=Security(
                    security.protocol,
                    mechanism=security.mechanism or None,
                    username=security.username if security.uses_sasl else None,
                    password=security.password if security.uses_sasl else None,
                    token=None if security.oauth is None else _token_source(security.oauth),
                    extensions=() if security.oauth is None else security.oauth.extensions,
                    new_context=None,
                    key_password=security.key_password or None,
                    check_hostname=security.check_hostname,
                    **names,
                ),
            )
        except Exception as error:
            raise ConnectorError(
                errors.AUTHENTICATION_FAILED,
                str(error).rstrip("."),
                "Check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*",
            ) from None


def acquire_client(options: ClientOptions) -> BlockingClient:
    """An idle client of this process for these options, or a new one."""
    with _idle_lock:
        for entry in reversed(_idle):
            if entry[:2] == (os.getpid(), options):
                _idle.remove(entry)
                return entry[2]
    return connect(options)


def release_client(options: ClientOptions, client: BlockingClient) -> None:
    """Keeps the client for the next task; the one idle for longest goes if there are too many."""
    surplus: list[BlockingClient] = []
    with _idle_lock:
        _idle.append((os.getpid(), options, client))
        while len(_idle) > IDLE_CLIENTS_MAX:
            pid, _, oldest = _idle.popleft()
            if pid == os.getpid():
                surplus.append(oldest)
    for each in surplus:
        each.close()


@contextmanager
def cluster_of(options: SourceOptions) -> Iterator[KafkaCluster]:
    """A cluster for the requests of a reader; see `client_of`."""
    with client_of(options.client) as client:
        yield KafkaCluster(
            client,
            options.client,
            lookup_retries=options.lookup_retries,
            lookup_retry_interval_ms=options.lookup_retry_interval_ms,
        )


@contextmanager
def client_of(options: ClientOptions) -> Iterator[BlockingClient]:
    """A client for the block; it goes back into the cache if nothing failed."""
    client = acquire_client(options)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    release_client(options, client)
