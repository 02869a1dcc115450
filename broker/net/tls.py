"""TLS connections: the same connection over a socket that encrypts.

What was received and not read yet is invisible to the loop, so after every read it is read too.
File parts cannot go by sendfile: they are read in bounded pieces and encrypted.

Only listeners with TLS import this module: importing `ssl` takes some milliseconds.
"""

import logging
import socket
import ssl
from typing import TYPE_CHECKING, Any

from ottla.broker.net.connection import Connection
from ottla.broker.net.output import FilePart, FileTruncated, Output
from ottla.broker.net.tls_socket import SEND_BYTES, TlsSocket
from ottla.broker.security.audit.security_log import Login

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.net.services import ListenerFacts, NetworkServices

logger = logging.getLogger("ottla.net")

# The most that fits into one TLS record.
RECORD_BYTES = 16384

# How often what is in memory is read before other connections get their turn. One read decrypts
# 1,024 tiny records in two milliseconds.
MAX_READS_AT_ONCE = 4

# A handshake is a few packets; one that takes longer is not going to finish.
HANDSHAKE_TIMEOUT_MS = 30_000


_MECHANISM = "a certificate"
_CERTIFICATE_REASONS = frozenset(("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED"))


class TlsOutput(Output):
    """Sends through `TlsSocket`, one piece after the other."""

    __slots__ = ()

    def _send_together(self, limit: int) -> int:
        return 0  # see `_piece`; TlsSocket takes a copy of each piece anyway

    def _send_buffers(self, limit: int) -> int:
        buffers, _ = self._buffers(limit=64)
        sent: int = self._sock.send(_join(buffers))
        return sent

    def _send_file(self, part: FilePart, limit: int) -> int:
        offset = self._sent_of_first
        wanted = min(self._warm_until - offset, limit)
        sock: Any = self._sock
        sent: int = sock.send_file(part.fd, part.position + offset, wanted)
        if not sent:
            raise FileTruncated(f"{part.length - offset} bytes are missing")
        return sent


def _join(buffers: list[Any]) -> Any:
    """The buffers joined, up to a piece; a big first one unchanged."""
    first = buffers[0]
    if len(buffers) == 1 or len(first) >= RECORD_BYTES:
        return first
    taken = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > SEND_BYTES:
            break
        taken.append(buffer)
        size += len(buffer)
    return b"".join(taken)


class TlsConnection(Connection):
    """A connection that begins with a handshake."""

    __slots__ = ("_deadline", "_handshake_writes", "_handshaking", "_tls")

    output_class = TlsOutput

    def __init__(
        self,
        sock: socket.socket,
        client: tuple[str, int],
        listener: "ListenerFacts",
        services: "NetworkServices",
        on_closed: "Callable[[Connection], None]",
    ) -> None:
        assert listener.tls_context is not None
        buffer = services.tls_buffer
        if buffer is None:
            buffer = services.tls_buffer = memoryview(bytearray(SEND_BYTES))
        self._tls = TlsSocket(sock, listener.tls_context, buffer)
        # The base class calls nothing on it that TlsSocket has not.
        super().__init__(self._tls, client, listener, services, on_closed)  # type: ignore[arg-type]
        self._handshaking = True
        self._handshake_writes = False  # the loop watches for room in the socket
        self._deadline: Any = None

    def start(self) -> None:
        self._deadline = self._services.timer.schedule(
            HANDSHAKE_TIMEOUT_MS, self._handshake_timed_out
        )
        super().start()

    def close(self, reason: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._stop_handshake_writes()
        super().close(reason)

    def _handshake_timed_out(self) -> None:
        self._deadline = None
        self.close("the TLS handshake took too long")

    def _do_handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._stop_handshake_writes()
            self._check_for_reset()
            return
        except ssl.SSLWantWriteError:
            if not self._handshake_writes:
                self._handshake_writes = True
                self._services.loop.add_writer(self._fd, self._do_handshake)
            return
        except OSError as error:  # also every error of TLS
            self._refuse(error)
            return
        self._stop_handshake_writes()
        self._handshaking = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self.listener.principal_of_certificate is not None:
            try:
                certificate = self._tls.peer_certificate()
                self.principal = self.listener.principal_of_certificate(certificate)
            except ValueError as error:
                self._refuse(error)
                return
            if certificate:
                login = Login(str(self.principal), _MECHANISM, is_renewal=False)
                self._services.security_log.logged_in(self, login)
        self._read_decrypted()

    def _stop_handshake_writes(self) -> None:
        if self._handshake_writes:
            self._handshake_writes = False
            self._services.loop.remove_writer(self._fd)

    def _refuse(self, error: Exception) -> None:
        services = self._services
        if isinstance(error, ssl.SSLError):
            services.statistics.wrong_protocol += 1
        if not isinstance(error, OSError) or _is_about_certificate(error):
            reason = _explain(error) if isinstance(error, ssl.SSLError) else str(error)
            login = Login("", _MECHANISM, is_renewal=False)
            services.security_log.login_failed(self, login, f"failed to authenticate: {reason}")
        elif isinstance(error, ssl.SSLError) and services.log_limiter.allows(self.client_host):
            logger.warning(
                "%s:%d on listener %s: %s",
                self.client_host,
                self.client_port,
                self.listener_name,
                _explain(error),
                extra={"peer": self.client_host, "listener": self.listener_name},
            )
        self.close(f"the TLS handshake failed: {error}")

    def _on_readable(self) -> None:
        if self._handshaking:
            self._do_handshake()
            return
        super()._on_readable()
        self._read_decrypted()

    def _resume_reading(self) -> None:
        super()._resume_reading()
        if not self._handshaking and self._tls.pending():
            self._services.loop.call_soon(self._read_decrypted)

    def _read_decrypted(self) -> None:
        """Go on reading while there is something that the loop cannot see."""
        pending = self._tls.pending
        for _ in range(MAX_READS_AT_ONCE):
            if self.closed or self._muted or not self._reading or not pending():
                return
            super()._on_readable()
        self._services.loop.call_soon(self._read_decrypted)


def _is_about_certificate(error: Exception) -> bool:
    """Whether the certificate of the client is why its handshake failed."""
    return isinstance(error, ssl.SSLError) and error.reason in _CERTIFICATE_REASONS


def _explain(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if reason == "HTTP_REQUEST":
        return "it sent HTTP to a TLS listener of the Kafka protocol"
    if reason in ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"):
        return (
            "it does not speak TLS; set the client's security.protocol to SSL or SASL_SSL, or "
            "connect to a listener without TLS"
        )
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it has no certificate, which this listener requires (ssl.client.auth)"
    return f"the TLS handshake failed ({reason}); check certificates and protocol versions"
