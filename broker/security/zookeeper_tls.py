"""Connections to ZooKeeper over TLS, with a context of the broker's.

kazoo makes a context itself, from PEM files, and sets neither versions nor revocation lists.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


def tls_handler(make_context: Callable[[], ssl.SSLContext]) -> SequentialThreadingHandler:
    """A handler of kazoo whose connections use a context that `make_context` returns, a new one
    each, so that a renewed certificate is used from the next connection on."""

    class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        def create_connection(
            self, address: tuple[str, int], hostname: str, timeout: float, **ignored: Any
        ) -> ssl.SSLSocket:
            plain = socket.create_connection(address, timeout)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return make_context().wrap_socket(plain, server_hostname=hostname)
            except BaseException:
                plain.close()
                raise

    return TlsHandler()
