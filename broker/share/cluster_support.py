"""Whether every live broker of the cluster serves share groups (KIP-932).

The leader of a partition, the share coordinator and the group coordinator can be any broker, so one
without share groups would make members fail. A broker has them if its ApiVersions lists
ReadShareGroupState. Nothing is written for that: brokers of Kafka 3.9 see a connection only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import BrokerMetadata, MetadataCache

logger = logging.getLogger("ottla.share")

VersionsOf = Callable[[int], Awaitable[Mapping[int, tuple[int, int]]]]
"""The API versions of a broker; raises after a deadline, and when it cannot be reached."""

# A broker that restarts is unregistered meanwhile, so this is for changes that were missed.
_VALID_SECONDS = 60.0


class _Known(NamedTuple):
    broker: BrokerMetadata
    has_share_groups: bool
    until_s: float


class ClusterSupport:
    """Remembers what the other brokers have; as many entries as there are brokers."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        versions_of: VersionsOf,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._versions_of = versions_of
        self._now_s = now_s
        self._known: dict[int, _Known] = {}
        self._logged: list[int] = []

    async def check(self) -> None:
        """Raise KafkaError: UNSUPPORTED_VERSION if a live broker has no share groups,
        COORDINATOR_NOT_AVAILABLE if a broker that is new here cannot be reached."""
        brokers = self._metadata.snapshot.brokers
        for broker_id in [each for each in self._known if each not in brokers]:
            del self._known[broker_id]
        lacking = [
            broker_id
            for broker_id, broker in sorted(brokers.items())
            if broker_id != self._broker_id and not await self._has(broker_id, broker)
        ]
        if lacking != self._logged:
            self._logged = lacking
            if lacking:
                logger.warning(
                    "Share groups are refused: brokers %s do not serve them. Add `share` to "
                    "group.coordinator.rebalance.protocols of every broker",
                    ", ".join(map(str, lacking)),
                )
            else:
                logger.info("Every broker serves share groups now")
        if lacking:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {lacking[0]} of the cluster does not serve share groups.",
            )

    async def _has(self, broker_id: int, broker: BrokerMetadata) -> bool:
        known = self._known.get(broker_id)
        if known is not None and known.broker == broker and self._now_s() < known.until_s:
            return known.has_share_groups
        try:
            versions = await self._versions_of(broker_id)
        except Exception as problem:
            if known is not None and known.broker == broker:
                return known.has_share_groups
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"Whether broker {broker_id} serves share groups is not known yet.",
            ) from problem
        has = ApiKey.READ_SHARE_GROUP_STATE in versions
        self._known[broker_id] = _Known(broker, has, self._now_s() + _VALID_SECONDS)
        return has
