"""TLS connections: the same connection over a socket that encrypts.

What was received and not read yet is invisible to the loop, so after every read it is read too.
File parts cannot go by sendfile: they are read in bounded pieces and encrypted.

Only listeners with TLS import this module: importing `ssl` takes some milliseconds.
"""

import logging
import os
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla.broker.net.connection import Connection
from ottla.broker.net.invalid_frames import (
    WITHOUT_TLS,
    explanation,
    recognise,
    report_protocol,
)
from ottla.broker.net.output import FileTruncated, Output
from ottla.broker.requests.memory_budget import SHORT_BYTES
from ottla.broker.security.audit.security_log import Login

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.net.services import ListenerFacts, NetworkServices
    from ottla.storage.files.open_files import FileSlice


logger = logging.getLogger("ottla.net")

# The most that fits into one TLS record.
RECORD_BYTES = 16384

# How often what is in memory is read before other connections get their turn. One read decrypts
# 1,024 tiny records in two milliseconds.
MAX_READS_AT_ONCE = 4

# A handshake is a few packets; one that takes longer is not going to finish.
HANDSHAKE_TIMEOUT_MS = 30_000


_MECHANISM = "a certificate"
# The types of the records that a handshake begins or ends with, and no bytes at all.
_TLS_RECORDS = (b"", b"\x15", b"\x16")
_CERTIFICATE_REASONS = frozenset(("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED"))


class TlsOutput(Output):
    """Sends through `TlsSocket`, one piece after the other."""

    __slots__ = ()

    @property
    def memory_bytes(self) -> int:
        # Bytes that are encrypted but not sent, even of a file.
        return super().memory_bytes + SEND_BYTES

    def _send_together(self, limit: int) -> int:
        return 0  # see `_piece`; TlsSocket takes a copy of each piece anyway

    def _send_buffers(self, limit: int) -> int:
        buffers, _ = self._buffers(limit=64)
        sent: int = self._sock.send(_join(buffers))
        return sent

    def _send_file(self, part: "FileSlice", limit: int) -> int:
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
    reads_ahead = True

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

    @property
    def received_bytes(self) -> int:
        return self._tls.received_bytes  # a record that is not whole is progress, too

    def set_aside(self) -> None:
        super().set_aside()
        if self._tls.pending():
            self._take_up()

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
        first_bytes = self._tls.first_bytes
        if isinstance(error, ssl.SSLError) and first_bytes[:1] not in _TLS_RECORDS:
            protocol = recognise(first_bytes) or WITHOUT_TLS
            fix = explanation(protocol, self.listener_name, encrypted=True)
            report_protocol(self, protocol, fix, services)
            self.close(f"the client sent {protocol}")
            return
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
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it has no certificate, which this listener requires (ssl.client.auth)"
    return f"the TLS handshake failed ({reason}); check certificates and protocol versions"


# So much is received, and so much is encrypted and sent, by one system call. OpenSSL keeps a buffer
# of up to 4/3 of it in each direction, as long as a connection is open that needed it once.
RECEIVE_BYTES = 32768
SEND_BYTES = 65536

# Bytes received before other connections get their turn.
MAX_BYTES_AT_ONCE = 1 << 18

# The same for tiny records: decrypting one takes more than a microsecond, however short it is.
MAX_RECORDS_AT_ONCE = 1024

# A handshake is a few packets.
MAX_HANDSHAKE_PIECES = 8

# After the handshake OpenSSL writes nothing by itself but alerts of a few bytes.
MAX_ALERT_BYTES = 4096


class TlsSocket:
    """The calls of a connection on its socket, over TLS. Raises BlockingIOError like a socket.

    Clients send small records: librdkafka has one for each value of a request, and one for the
    bytes between two values. OpenSSL on a socket takes two system calls for each, one for its
    header; here it works on memory, so that one system call moves many records.

    `buffer` has `SEND_BYTES` and holds nothing between two calls: all sockets of a loop share it.
    """

    __slots__ = (
        "_buffer",
        "_drained",
        "_encrypted",
        "_ended",
        "_failure",
        "_incoming",
        "_outgoing",
        "_sock",
        "_tls",
        "_unsent",
        "first_bytes",
        "received_bytes",
    )

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, buffer: memoryview) -> None:
        self._sock = sock
        self._buffer = buffer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._drained = True  # all that came is decrypted, but for the beginning of a record
        self._ended = False  # the client sends nothing more
        self._failure: OSError | None = None  # for the call after the one that returned data
        self._encrypted = 0  # bytes of the caller that are encrypted, and not all sent
        self._unsent: memoryview | None = None  # taken out of `_outgoing`
        self.received_bytes = 0  #: from the socket
        self.first_bytes = b""  #: what the client sent first, up to four bytes

    def fileno(self) -> int:
        return self._sock.fileno()

    def getsockname(self) -> Any:
        return self._sock.getsockname()

    def getsockopt(self, level: int, option: int) -> int:
        return self._sock.getsockopt(level, option)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._sock.setsockopt(level, option, value)

    def recv_into(self, buffer: Any) -> int:
        """Decrypt what has come, as much as fits into the buffer and a turn. 0: the client closed
        the connection, with or without a close_notify alert, which most clients do not send."""
        size = len(buffer)
        view = memoryview(buffer)
        # A short buffer: memory is short, and what is not decrypted stays in memory.
        least = RECEIVE_BYTES if size > SHORT_BYTES else SHORT_BYTES
        filled = self._decrypt(view)
        received = 0
        while self._drained and not self._ended and filled < size:
            try:
                count = self._receive(least)
                received += count
                filled += self._decrypt(view[filled:])
            except OSError as error:
                if not filled:
                    raise
                if not isinstance(error, BlockingIOError):
                    self._failure = error.with_traceback(None)
                break
            if filled:
                # A short read was all; after one without data only the next reports a reset.
                if count < least or received >= MAX_BYTES_AT_ONCE:
                    break
            elif received >= MAX_BYTES_AT_ONCE:
                raise OSError(f"no data in {received} bytes of TLS records")
        return filled

    def _decrypt(self, view: memoryview) -> int:
        """Decrypt what is in memory, as much as fits. An error waits until the data before it are
        handled."""
        if self._failure is not None:
            raise self._take_failure()
        filled = 0
        if self._drained or self._ended:
            return filled
        read: Any = self._tls.read  # typeshed knows no other buffers than bytearray
        size = len(view)
        try:
            for _ in range(MAX_RECORDS_AT_ONCE):
                count = read(size - filled, view[filled:])
                filled += count
                if not count:
                    self._ended = True
                    break
                if filled == size:
                    break
        except ssl.SSLWantReadError:
            self._drained = True
        except ssl.SSLEOFError:
            self._ended = True
        except OSError as error:
            if not filled:
                raise
            self._failure = error.with_traceback(None)
        if self._outgoing.pending:
            self._send_alerts()
        return filled

    def _take_failure(self) -> OSError:
        """The error that comes after the data. It is not kept: its traceback knows the buffer of
        the caller, which would not be free until the garbage collector comes around."""
        failure, self._failure = self._failure, None
        assert failure is not None
        return failure

    def _receive(self, size: int = RECEIVE_BYTES) -> int:
        count = self._sock.recv_into(self._buffer, size)
        if count:
            self.received_bytes += count
            self._incoming.write(self._buffer[:count])
        else:
            self._incoming.write_eof()
        self._drained = False
        return count

    def _send_alerts(self) -> None:
        """Send what OpenSSL wrote while it read. A client whose socket takes nothing cannot have
        any number of alerts kept for it."""
        with suppress(OSError):  # what it sent before it closed is still to be read
            self._flush()
        if self._outgoing.pending > MAX_ALERT_BYTES:
            raise OSError("the client does not read TLS alerts")

    def pending(self) -> bool:
        """Whether a read returns something, or raises an error, that the loop cannot see."""
        if self._failure is not None or self._ended:
            return True
        return not self._drained and bool(self._incoming.pending or self._tls.pending())

    def send(self, data: Any) -> int:
        """Send at most `SEND_BYTES`. Returns how much of `data` is sent; after BlockingIOError the
        same bytes must come again."""
        if not self._encrypted:
            self._encrypted = self._tls.write(memoryview(data)[:SEND_BYTES])
        return self._send_encrypted()

    def send_file(self, fd: int, position: int, length: int) -> int:
        """`send` a part of a file. Returns 0 when the file ends before it."""
        if not self._encrypted:
            read = os.preadv(fd, [self._buffer[:length]], position)
            if not read:
                return 0
            self._encrypted = self._tls.write(self._buffer[:read])
        return self._send_encrypted()

    def _send_encrypted(self) -> int:
        self._flush()
        sent, self._encrypted = self._encrypted, 0
        return sent

    def _flush(self) -> None:
        """Send all that OpenSSL wrote, or raise BlockingIOError."""
        unsent = self._unsent
        while unsent is not None or self._outgoing.pending:
            if unsent is None:
                unsent = self._unsent = memoryview(self._outgoing.read())
            sent = self._sock.send(unsent)
            if sent < len(unsent):
                self._unsent = unsent[sent:]
                raise BlockingIOError
            unsent = self._unsent = None

    def do_handshake(self) -> None:
        """Take part in the handshake as far as it goes without waiting. Raises SSLWantReadError or
        SSLWantWriteError, and any other error when it failed."""
        for _ in range(MAX_HANDSHAKE_PIECES):
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush_handshake()
            else:
                self._flush_handshake()
                return
            try:
                count = self._receive()
            except BlockingIOError:
                break
            if not self.first_bytes:
                self.first_bytes = bytes(self._buffer[: min(count, 4)])
        raise ssl.SSLWantReadError

    def _flush_handshake(self) -> None:
        try:
            self._flush()
        except BlockingIOError:
            raise ssl.SSLWantWriteError from None

    def peer_certificate(self) -> bytes:
        """The client's verified certificate in DER; empty if it sent none."""
        return self._tls.getpeercert(True) or b""

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def detach(self) -> int:
        """The descriptor, which the socket does not close any more."""
        return self._sock.detach()

    def close(self) -> None:
        with suppress(OSError, ValueError):
            # Writes close_notify; without blocking it cannot wait for that of the client.
            self._tls.unwrap()
        with suppress(OSError):
            self._flush()
        self._sock.close()
