"""The features of the cluster that clients get with ApiVersions (KIP-584).

Kafka's `FinalizedFeatureChangeListener`: each broker follows the znode `/feature`, which the
controller writes. A broker of Kafka 3.9 in ZooKeeper mode supports no feature, so none is finalized
there. Ottla's own features (`ottla.controller.admin.own_features`) depend on their levels in a
znode of Ottla's and on the registered brokers, which are followed as well.

Clients take over finalized features with a higher epoch than those they know, from any broker. So
the epoch has to rise with every change and be the same on all brokers: it is the transaction id
(zxid) of the last change of these znodes. That of a Kafka 3 broker, the version of `/feature`, is
lower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.controller.admin.own_features import (
    OFF,
    OWN_FEATURES,
    TRANSACTION_VERSION,
    levels_in_effect,
    unsupporting,
)
from ottla.controller.model import BrokerInfo
from ottla.controller.tree import znodes
from ottla.controller.tree.store import NoNode, StoreError, children_or_empty
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_features, decode_own_levels

if TYPE_CHECKING:
    from ottla.controller.runtime import Runtime
    from ottla.controller.tree.store import Stat, WatchEvent, WatchHandle, ZnodeStore

logger = logging.getLogger("ottla.broker")

#: There are no finalized features: no znode, or they are disabled by inter.broker.protocol.version.
NO_EPOCH = -1

#: From a failure of the store to the next attempt to read the znodes.
RETRY_MS = 1_000

OnLowered = Callable[[str, int], None]
"""Gets the name of a feature whose level is lower now, or that is off, and the level."""


class FeatureCache:
    """The features this broker supports and those the cluster has finalized. Loop only."""

    def __init__(
        self, store: ZnodeStore, runtime: Runtime, supported: Mapping[str, tuple[int, int]]
    ) -> None:
        """`supported` are the lowest and highest levels by feature."""
        self.supported = dict(supported)
        #: The finalized levels by feature, and the version of what they are read from.
        self.finalized: dict[str, int] = {}
        self.epoch = NO_EPOCH
        self.on_lowered: OnLowered | None = None
        self._own = {name: span for name, span in self.supported.items() if name in OWN_FEATURES}
        self._store = store
        self._runtime = runtime
        self._reported: dict[str, str] = {}
        self._watches: list[WatchHandle] = []
        self._is_reading = False
        self._is_changed = False

    def transaction_version(self) -> int:
        """The finalized level of `transaction.version`; 0 where it is off."""
        return self.finalized.get(TRANSACTION_VERSION, OFF)

    async def start(self) -> None:
        """Read the znodes and follow their changes. Raises StoreError."""
        watch = partial(self._store.watch_data, callback=self._on_event)
        self._watches.append(await watch(znodes.FEATURE))
        if self._own:
            self._watches.append(await watch(znodes.OWN_LEVELS))
            self._watches.append(
                await self._store.watch_children(znodes.BROKER_IDS, self._on_event)
            )
        await self._read()

    def stop(self) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()

    def _on_event(self, event: WatchEvent) -> None:
        self._read_again()

    def _read_again(self) -> None:
        self._is_changed = True
        if not self._is_reading:
            self._is_reading = True
            self._runtime.spawn(self._read_changes(), name="features")

    async def _read_changes(self) -> None:
        try:
            while self._is_changed and self._watches:
                self._is_changed = False
                await self._read()
        except StoreError as error:
            if not self._watches:  # stopped, and the tree may be gone
                return
            # The watch is set again after a reconnection, but fires for further changes only.
            logger.warning("Cannot read the finalized features, retrying: %s", error)
            self._runtime.call_later(RETRY_MS, self._read_again)
        finally:
            self._is_reading = False

    async def _read(self) -> None:
        try:
            data, stat = await self._store.get(znodes.FEATURE)
            enabled, levels = decode_features(data)
        except NoNode:
            enabled, levels = False, {}
        except MalformedZnode as error:
            logger.error("Ignoring the finalized features: %s", error)
            enabled, levels = False, {}
        self._report_levels_without_effect(levels)
        if not enabled:
            self._replace({}, NO_EPOCH)
        elif not self._own:
            self._replace(levels, stat.version)
        else:
            own, changed = await self._read_own()
            general = {name: each for name, each in levels.items() if name not in OWN_FEATURES}
            self._replace({**general, **own}, max(stat.mzxid, changed))

    def _report_levels_without_effect(self, levels: Mapping[str, int]) -> None:
        """Log levels that were written by hand, once while they stay so."""
        for name, level in levels.items():
            low, high = self.supported.get(name, (0, -1))
            if name in OWN_FEATURES:
                fix = f"its level belongs in {znodes.OWN_LEVELS}, set it with UpdateFeatures"
            elif not low <= level <= high:
                fix = (
                    f"this broker does not have it, remove it with `ottla features --set {name}=0`"
                )
            else:
                continue
            text = f"Level {level} of feature {name} in {znodes.FEATURE} has no effect: {fix}"
            if self._reported.get(f"{znodes.FEATURE} {name}") != text:
                self._reported[f"{znodes.FEATURE} {name}"] = text
                logger.error("%s", text)

    async def _read_own(self) -> tuple[dict[str, int], int]:
        """The levels of Ottla's own features, and the zxid of their last change."""
        found, changed = await self._set_levels()
        # The statistics first: they may be older than the children, but not newer.
        stat = await self._store.exists(znodes.BROKER_IDS)
        brokers = await self._registered()
        levels = levels_in_effect(found, self._own, brokers)
        for name in self._own:
            self._report(name, found.get(name), levels.get(name, OFF), brokers)
        return levels, max(changed, _last_change(stat))

    async def _set_levels(self) -> tuple[dict[str, int], int]:
        try:
            data, stat = await self._store.get(znodes.OWN_LEVELS)
        except NoNode:
            return {}, NO_EPOCH
        try:
            return decode_own_levels(data), stat.mzxid
        except MalformedZnode as error:
            logger.error(
                "Turning off %s: %s; set their levels again with UpdateFeatures",
                ", ".join(self._own),
                error,
            )
            return dict.fromkeys(self._own, OFF), stat.mzxid

    async def _registered(self) -> list[BrokerInfo]:
        """The registered brokers; one whose znode cannot be read supports no feature."""
        ids = znodes.broker_ids(await children_or_empty(self._store, znodes.BROKER_IDS))
        rows = await self._store.get_many([znodes.broker_path(each) for each in ids])
        found = []
        for broker_id, row in zip(ids, rows, strict=True):
            if row is None:
                continue  # gone since, which is another event
            try:
                found.append(znodes.decode_broker(broker_id, row[0], row[1].czxid))
            except MalformedZnode:
                found.append(BrokerInfo(broker_id, ()))
        return found

    def _report(self, name: str, wanted: int | None, level: int, brokers: list[BrokerInfo]) -> None:
        """Log the level in effect, or why the feature is off, once while it stays so."""
        severity, text = self._explain(name, wanted, level, brokers)
        if self._reported.get(name) != text:
            self._reported[name] = text
            logger.log(severity, "%s", text)

    def _explain(
        self, name: str, wanted: int | None, level: int, brokers: list[BrokerInfo]
    ) -> tuple[int, str]:
        low, high = self._own[name]
        where = znodes.OWN_LEVELS
        if level:
            return logging.INFO, f"Feature {name} is finalized at level {level}"
        if wanted == OFF:
            return logging.INFO, f"Feature {name} is off: its level in {where} is 0"
        if wanted is not None and not low <= wanted <= high:
            return (
                logging.ERROR,
                f"Feature {name} is off: its level in {where} is {wanted}, this broker has {low} to"
                f" {high}; set one of them with UpdateFeatures",
            )
        without = unsupporting(name, low if wanted is None else wanted, brokers)
        them = f"broker {without[0]} does" if len(without) == 1 else f"brokers {without} do"
        return (
            logging.WARNING,
            f"Feature {name} is off: {them} not support level {wanted or low}; it is on again when"
            " all registered brokers do",
        )

    def _replace(self, levels: dict[str, int], epoch: int) -> None:
        before = self.finalized
        self.finalized, self.epoch = levels, epoch
        if self.on_lowered is not None:
            for name, level in before.items():
                if levels.get(name, OFF) < level:
                    self.on_lowered(name, levels.get(name, OFF))


def _last_change(stat: Stat | None) -> int:
    return NO_EPOCH if stat is None else stat.pzxid
