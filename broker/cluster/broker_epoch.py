"""The epoch of this broker's registration, as one object for all who send or check it (KIP-380)."""

from __future__ import annotations

UNKNOWN_BROKER_EPOCH = -1


class BrokerEpoch:
    """`value` is that of the last registration, `UNKNOWN_BROKER_EPOCH` before the first one."""

    def __init__(self, value: int = UNKNOWN_BROKER_EPOCH) -> None:
        self.value = value
        self._is_taken = False

    def registered(self, broker_epoch: int) -> None:
        """The broker registered, for the first time or after its session had expired."""
        self.value = broker_epoch
        self._is_taken = False

    def taken(self) -> None:
        """Another broker has registered with the id, until this one registers again."""
        self._is_taken = True

    def is_stale(self, broker_epoch: int) -> bool:
        """Whether a request of the controller is for a registration that has ended."""
        if broker_epoch == UNKNOWN_BROKER_EPOCH:
            return False
        return broker_epoch < self.value or (self._is_taken and broker_epoch == self.value)
