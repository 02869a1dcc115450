"""Keeps descriptors free for logs, other brokers and health checks when clients take too many.

A process that has no descriptor left can roll no segment, write no checkpoint and serve no health
check. The system gives each new socket the lowest free number, so the number of a socket that was
just accepted says how many descriptors are in use, whatever they are used for.
"""

import os
import resource
from typing import NamedTuple

# A share of the limit (`ulimit -n`) stays free of clients, and the half of it of other brokers.
RESERVED_SHARE = 8
# For checkpoints, new segments with their indexes, and connections of brokers and health checks.
LEAST_RESERVED = 32
# Enough to roll many segments at once.
MOST_RESERVED = 1024


# Of what clients may take, the share from which an operator should know.
MANY_USED_SHARE = 0.8


class Descriptors(NamedTuple):
    """Counts of descriptors: open, the limit of the process, and reserved ones.
    `replaceable`: an unknown connection would be closed for a new one."""

    used: int
    limit: int
    reserved: int
    replaceable: bool = False

    @property
    def are_used_up(self) -> bool:
        """Whether connections of clients are refused. Sockets that send nothing do not bring this
        about: they are closed for new connections, and must not take the broker out of service."""
        return self.used >= self.limit - self.reserved and not self.replaceable

    @property
    def are_nearly_used_up(self) -> bool:
        return self.used >= (self.limit - self.reserved) * MANY_USED_SHARE


class DescriptorReserve:
    """Decides whether a socket that was accepted may stay."""

    __slots__ = ("_for_brokers", "_for_clients", "limit", "reserved")

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: the soft limit RLIMIT_NOFILE, by default that of the process."""
        if limit is None:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            limit = 1 << 30
        self.limit = limit
        self.reserved = min(max(limit // RESERVED_SHARE, LEAST_RESERVED), MOST_RESERVED)
        self._for_clients = limit - self.reserved
        self._for_brokers = limit - self.reserved // 2

    def has_room(self, descriptor: int, *, protected: bool) -> bool:
        """Whether a connection with this number leaves the reserve free. `protected`: that of a
        broker, which may use half of the reserve."""
        return descriptor < (self._for_brokers if protected else self._for_clients)

    def is_used(self) -> bool:
        """Whether something else, such as new logs, has taken some of the reserve."""
        return self._lowest_free() >= self._for_clients

    def state(self, *, replaceable: bool) -> Descriptors:
        """The descriptors in use. Those above the lowest free one are not counted: to list them all
        would take the loop milliseconds, and the lowest free one decides what is refused."""
        return Descriptors(self._lowest_free(), self.limit, self.reserved, replaceable)

    def _lowest_free(self) -> int:
        try:
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return self.limit
        os.close(descriptor)
        return descriptor
