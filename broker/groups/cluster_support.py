"""Whether every live broker of the cluster serves the newer group protocols.

The group coordinator, the share coordinator and the leader of a partition can be any broker, so one
without a protocol would make members fail. Apache Kafka 3.9 in ZooKeeper mode has neither the
consumer protocol (KIP-848) nor share groups (KIP-932). What a broker has follows from its
ApiVersions, from requests that it lists in any cluster. Nothing is written for that: brokers of
Kafka 3.9 see a connection only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.runtime.tasks import gather_limited, spawn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import BrokerMetadata, MetadataCache

logger = logging.getLogger("ottla.groups")

Versions = Mapping[int, tuple[int, int]]
VersionsOf = Callable[[int], Awaitable[Versions]]
"""The API versions of a broker; raises after a deadline, and when it cannot be reached."""

CONSUMER = "consumer"
SHARE = "share"

# A broker that restarts is unregistered meanwhile, so this is for changes that were missed.
_VALID_SECONDS = 60.0
# Brokers that are asked beside each other: one that cannot be reached takes a deadline.
_ASKED_AT_ONCE = 16

# The newest version that ApiVersions lists if a protocol is not offered, None for no version.
# Kafka 3.9 lists version 0 of ConsumerGroupHeartbeat, and rejects each request.
_NOT_OFFERED: Mapping[str, Mapping[int, int | None]] = {
    CONSUMER: {ApiKey.CONSUMER_GROUP_HEARTBEAT: 0},
    SHARE: dict.fromkeys(
        (ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)
    ),
}


def protocols_of(versions: Versions) -> frozenset[str]:
    """Return the newer protocols of a broker with these API versions.

    A request that is listed whether or not the protocol is offered tells it: Kafka 3.9 has
    version 0 of ConsumerGroupDescribe only.
    """
    found = set()
    if versions.get(ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 0))[1] >= 1:
        found.add(CONSUMER)
    if ApiKey.READ_SHARE_GROUP_STATE in versions:
        found.add(SHARE)
    return frozenset(found)


class _Known(NamedTuple):
    broker: BrokerMetadata
    protocols: frozenset[str]
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
        self._logged: dict[str, list[int]] = {}
        self._is_asking = False

    def serves(self, protocol: str) -> bool:
        """Return whether all live brokers are known to have the protocol; asks none."""
        now_s = self._now_s()
        return all(
            known is not None and now_s < known.until_s and protocol in known.protocols
            for known in self._others()
        )

    def not_offered(self) -> Mapping[int, int | None]:
        """Return the newest version to list by API key, None for an API that is not listed.

        A broker that is new here counts as one with all protocols until it has answered: a client
        that connects while a broker restarts must not give up.
        """
        others = list(self._others())
        found: dict[int, int | None] = {}
        for protocol, keys in _NOT_OFFERED.items():
            if any(known and protocol not in known.protocols for known in others):
                found.update(keys)
        self._ask_later()
        return found

    def metadata_changed(self) -> None:
        """Forget the brokers that are not live: one that comes back may have other protocols."""
        brokers = self._metadata.snapshot.brokers
        for broker_id in [each for each in self._known if each not in brokers]:
            del self._known[broker_id]

    def _others(self) -> Iterator[_Known | None]:
        """Yield what is known of each other live broker, None for one that is new here."""
        for broker_id, broker in self._metadata.snapshot.brokers.items():
            if broker_id != self._broker_id:
                yield self._last_known(broker_id, broker)

    def _ask_later(self) -> None:
        """Ask brokers that are new, or were asked for long ago, while nobody waits for it."""
        if not self._is_asking and self._due():
            self._is_asking = True
            spawn(self._ask_all(), name="group protocols of other brokers")

    async def _ask_all(self) -> None:
        try:
            await self._ask_each(self._due())
            for protocol in _NOT_OFFERED:
                self._log(protocol, self._lacking(protocol))
        finally:
            self._is_asking = False

    async def check(self, protocol: str) -> None:
        """Raise KafkaError: UNSUPPORTED_VERSION if a live broker does not have the protocol,
        else COORDINATOR_NOT_AVAILABLE if a broker that is new here cannot be reached.

        Waits for new brokers, and for those that would refuse the request. That another one had the
        protocol the last time counts until it has answered again: each request would wait for a
        broker that cannot be reached otherwise.
        """
        await self._ask_each(each for each in self._due() if not self._has(each, protocol))
        self._ask_later()
        lacking = self._lacking(protocol)
        self._log(protocol, lacking)
        if lacking:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {lacking[0]} of the cluster does not serve {protocol} groups. Replace "
                "brokers of Apache Kafka 3.9, and do not exclude the protocol from "
                "group.coordinator.rebalance.protocols.",
            )
        unknown = [
            broker_id
            for broker_id, broker in self._due()
            if not self._last_known(broker_id, broker)
        ]
        if unknown:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"The group protocols of broker {unknown[0]} are not known yet.",
            )

    def _due(self) -> list[tuple[int, BrokerMetadata]]:
        """The other live brokers that are new here, or were asked for long ago, by id."""
        now_s = self._now_s()
        return [
            (broker_id, broker)
            for broker_id, broker in sorted(self._metadata.snapshot.brokers.items())
            if broker_id != self._broker_id
            and (not (known := self._last_known(broker_id, broker)) or known.until_s <= now_s)
        ]

    def _has(self, broker: tuple[int, BrokerMetadata], protocol: str) -> bool:
        known = self._last_known(*broker)
        return known is not None and protocol in known.protocols

    def _lacking(self, protocol: str) -> list[int]:
        """The other live brokers that are known to lack a protocol, by id."""
        return [
            broker_id
            for broker_id, broker in sorted(self._metadata.snapshot.brokers.items())
            if (known := self._last_known(broker_id, broker)) and protocol not in known.protocols
        ]

    def _log(self, protocol: str, lacking: list[int]) -> None:
        if lacking == self._logged.get(protocol, []):
            return
        self._logged[protocol] = lacking
        if lacking:
            logger.warning(
                "Groups of the %s protocol are refused: %s not serve them. Replace "
                "brokers of Apache Kafka 3.9, and add `%s` to "
                "group.coordinator.rebalance.protocols where it is set. Their committed offsets "
                "are kept",
                protocol,
                f"broker {lacking[0]} does"
                if len(lacking) == 1
                else f"brokers {', '.join(map(str, lacking))} do",
                protocol,
            )
        else:
            logger.info("Every broker serves groups of the %s protocol now", protocol)

    async def _ask_each(self, brokers: Iterable[tuple[int, BrokerMetadata]]) -> None:
        await gather_limited([self._ask(*each) for each in brokers], _ASKED_AT_ONCE)

    def _last_known(self, broker_id: int, broker: BrokerMetadata) -> _Known | None:
        known = self._known.get(broker_id)
        return known if known is not None and known.broker == broker else None

    async def _ask(self, broker_id: int, broker: BrokerMetadata) -> None:
        try:
            versions = await self._versions_of(broker_id)
        except Exception as problem:  # of the network, or of another program at its address
            logger.debug("Failed to read the API versions of broker %d: %s", broker_id, problem)
            return
        found = protocols_of(versions)
        self._known[broker_id] = _Known(broker, found, self._now_s() + _VALID_SECONDS)
