"""A socket that encrypts. OpenSSL works on memory, so that one system call moves many TLS records.

Clients send small records: librdkafka has one for each value of a request, and one for what stands
between two values. OpenSSL on a socket takes two system calls for each, one for its header.
"""

import os
import socket
import ssl
from contextlib import suppress
from typing import Any

# So much is received, and so much is encrypted and sent, by one system call. OpenSSL keeps a buffer
# of up to 4/3 of it in each direction, as long as a connection is open that needed it once.
RECEIVE_BYTES = 32768
SEND_BYTES = 65536

# So much is received before other connections get their turn.
MAX_BYTES_AT_ONCE = 1 << 18

# The same for tiny records: decrypting one takes more than a microsecond, however short it is.
MAX_RECORDS_AT_ONCE = 1024

# A handshake is a few packets.
MAX_HANDSHAKE_PIECES = 8

# After the handshake OpenSSL writes nothing by itself but alerts of a few bytes.
MAX_ALERT_BYTES = 4096


class TlsSocket:
    """What a connection calls on its socket, over TLS. Raises BlockingIOError like a socket.

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
        self._encrypted = 0  # so many bytes of the caller are encrypted, and not all sent
        self._unsent: memoryview | None = None  # taken out of `_outgoing`

    def fileno(self) -> int:
        return self._sock.fileno()

    def getsockname(self) -> Any:
        return self._sock.getsockname()

    def getsockopt(self, level: int, option: int) -> int:
        return self._sock.getsockopt(level, option)

    def recv_into(self, buffer: Any) -> int:
        """Decrypt what has come, as much as fits into the buffer and a turn. 0: the client closed
        the connection, with or without a close_notify alert, which most clients do not send."""
        size = len(buffer)
        view = memoryview(buffer)
        filled = self._decrypt(view)
        received = 0
        while self._drained and not self._ended and filled < size:
            try:
                count = self._receive()
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
                if count < RECEIVE_BYTES or received >= MAX_BYTES_AT_ONCE:
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

    def _receive(self) -> int:
        count = self._sock.recv_into(self._buffer, RECEIVE_BYTES)
        if count:
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
                self._receive()
            except BlockingIOError:
                break
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

    def close(self) -> None:
        with suppress(OSError, ValueError):
            # Writes close_notify; without blocking it cannot wait for that of the client.
            self._tls.unwrap()
        with suppress(OSError):
            self._flush()
        self._sock.close()
