"""The features of the cluster that clients get with ApiVersions (KIP-584).

Kafka's `FinalizedFeatureChangeListener`: each broker follows the znode `/feature`, which the
controller writes. A broker in ZooKeeper mode supports no feature, so none is finalized; the epoch
is the version of the znode.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.controller.tree import znodes
from ottla.controller.tree.store import NoNode, StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_features

if TYPE_CHECKING:
    from ottla.controller.runtime import Runtime
    from ottla.controller.tree.store import WatchEvent, WatchHandle, ZnodeStore

logger = logging.getLogger("ottla.broker")

#: There are no finalized features: no znode, or they are disabled by inter.broker.protocol.version.
NO_EPOCH = -1

#: From a failure of the store to the next attempt to read the znode.
RETRY_MS = 1_000


class FeatureCache:
    """The features this broker supports and those the cluster has finalized. Loop only."""

    def __init__(
        self, store: ZnodeStore, runtime: Runtime, supported: Mapping[str, tuple[int, int]]
    ) -> None:
        """`supported` are the lowest and highest levels by feature."""
        self.supported = dict(supported)
        #: The finalized levels by feature, and the version of the znode.
        self.finalized: dict[str, int] = {}
        self.epoch = NO_EPOCH
        self._store = store
        self._runtime = runtime
        self._watch: WatchHandle | None = None
        self._is_reading = False
        self._is_changed = False

    async def start(self) -> None:
        """Read the znode and follow its changes. Raises StoreError."""
        self._watch = await self._store.watch_data(znodes.FEATURE, self._on_event)
        await self._read()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _on_event(self, event: WatchEvent) -> None:
        self._read_again()

    def _read_again(self) -> None:
        self._is_changed = True
        if not self._is_reading:
            self._is_reading = True
            self._runtime.spawn(self._read_changes(), name="features")

    async def _read_changes(self) -> None:
        try:
            while self._is_changed and self._watch is not None:
                self._is_changed = False
                await self._read()
        except StoreError as error:
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
        self.finalized = levels if enabled else {}
        self.epoch = stat.version if enabled else NO_EPOCH
