"""Objects that all connections of a server share; each gets them instead of the server."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.metrics.statistics import NetworkStatistics
from ottla.broker.net.descriptors import DescriptorReserve
from ottla.broker.net.large_frames import FrameBuffers, LargeFrames
from ottla.broker.net.output import TurnLimit
from ottla.broker.requests.memory_budget import SHORT_BYTES
from ottla.broker.requests.request_channel import Principal, RequestChannel
from ottla.broker.requests.request_decoder import RequestDecoder
from ottla.broker.runtime.log_limiter import LogLimiter
from ottla.broker.runtime.tasks import WorkerPool
from ottla.broker.runtime.timer import DelayQueue
from ottla.broker.security.audit.security_log import SecurityLog

if TYPE_CHECKING:
    import ssl

    from ottla.broker.security.sasl.session import NewSession


class ListenerFacts:
    """The properties of a listener that its connections need."""

    __slots__ = (
        "first_frame_max_bytes",
        "name",
        "new_session",
        "of_brokers",
        "principal_of_certificate",
        "request_max_bytes",
        "requires_authentication",
        "security_protocol",
        "tls_context",
    )

    def __init__(
        self,
        name: str,
        *,
        security_protocol: str = "PLAINTEXT",
        new_session: "NewSession | None" = None,
        request_max_bytes: int = 104857600,
        first_frame_max_bytes: int = 524288,
        tls_context: "ssl.SSLContext | None" = None,
        of_brokers: bool = False,
        principal_of_certificate: Callable[[bytes], Principal] | None = None,
    ) -> None:
        self.name = name
        self.security_protocol = security_protocol
        # Authenticates a new connection (SASL listeners).
        self.new_session = new_session
        self.requires_authentication = security_protocol.startswith("SASL_")
        self.request_max_bytes = request_max_bytes
        self.tls_context = tls_context
        # Only other brokers connect to it.
        self.of_brokers = of_brokers
        # Who a client is by its certificate (SSL listeners); called after the handshake.
        self.principal_of_certificate = principal_of_certificate
        # Before authentication (Kafka's sasl.server.max.receive.size).
        self.first_frame_max_bytes = min(first_frame_max_bytes, request_max_bytes)


class NetworkServices:
    """The loop, the request channel, the timer, worker threads and statistics."""

    __slots__ = (
        "channel",
        "decoder",
        "descriptors",
        "frame_buffers",
        "large_frames",
        "log_limiter",
        "loop",
        "memory",
        "receive_buffer",
        "security_log",
        "short_buffer",
        "statistics",
        "timer",
        "tls_buffer",
        "turn_limit",
        "worker_pool",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: RequestChannel,
        timer: DelayQueue,
        worker_pool: WorkerPool,
        statistics: NetworkStatistics,
        receive_buffer_bytes: int,
        large_frames: LargeFrames | None = None,
        security_log: SecurityLog | None = None,
    ) -> None:
        self.loop = loop
        self.channel = channel
        self.memory = channel.memory
        self.timer = timer
        self.worker_pool = worker_pool
        self.statistics = statistics
        self.turn_limit = TurnLimit()
        self.descriptors = DescriptorReserve()
        self.large_frames = large_frames if large_frames is not None else LargeFrames()
        self.log_limiter = LogLimiter()
        self.security_log = security_log if security_log is not None else SecurityLog(timer)
        self.decoder = RequestDecoder(channel.routes, statistics, self.log_limiter, channel.bulk)
        self.frame_buffers = FrameBuffers()
        # One for all connections: it is copied out of before the next one reads.
        self.receive_buffer = bytearray(receive_buffer_bytes)
        self.short_buffer = bytearray(SHORT_BYTES)  # while memory is short
        self.tls_buffer: memoryview | None = None  # the first connection with TLS creates it
