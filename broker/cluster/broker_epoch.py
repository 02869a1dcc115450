"""The epoch of this broker's registration, as one object for all who send or check it (KIP-380)."""

from __future__ import annotations

UNKNOWN_BROKER_EPOCH = -1


class BrokerEpoch:
    """`value` is that of the last registration, `UNKNOWN_BROKER_EPOCH` before the first one."""

    def __init__(self, value: int = UNKNOWN_BROKER_EPOCH) -> None:
        self.value = value

    def registered(self, broker_epoch: int) -> None:
        """The broker registered, for the first time or after its session had expired."""
        self.value = broker_epoch
