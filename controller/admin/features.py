"""The finalized features of the cluster in `/feature` (KIP-584), and those of `own_features`."""

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.controller.admin.own_features import OFF, OWN_FEATURES, levels_in_effect
from ottla.controller.errors import OK, ApiError
from ottla.controller.model import BrokerInfo
from ottla.controller.settings import ControlVersions
from ottla.controller.state.context import ControllerContext
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.tree import znodes
from ottla.controller.tree.store import NoNode, make_paths
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import (
    decode_features,
    decode_own_levels,
    encode_features,
    encode_own_levels,
)
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger("ottla.controller")

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A level below 1 with SAFE_DOWNGRADE or UNSAFE_DOWNGRADE deletes the feature."""

    feature: str
    level: int
    upgrade_type: int = UPGRADE


class Features:
    """`supported`: the (min, max) levels that this broker supports, by feature name."""

    def __init__(
        self,
        context: ControllerContext,
        writer: FencedWriter,
        versions: ControlVersions,
        supported: Mapping[str, tuple[int, int]],
    ) -> None:
        self.context = context
        self.writer = writer
        self.versions = versions
        self.supported = supported
        self.finalized: dict[str, int] = {}
        # Ottla's own features that are set, in effect or not.
        self._own_levels: dict[str, int] = {}

    def is_compatible(self, broker: BrokerInfo) -> bool:
        """Whether the broker supports all finalized levels that this one does.

        What this broker does not support either was written by hand. Kafka's brokers end because
        of it; here it has no effect, as all partitions would be offline otherwise.
        """
        if not self.versions.feature_versioning:
            return True
        return all(
            _is_within(broker.features.get(name), level)
            for name, level in self.finalized.items()
            if _is_within(self.supported.get(name), level)
        )

    async def load(self) -> None:
        """Create the znode in a new cluster; enable or disable features by the inter-broker
        protocol version."""
        enable = self.versions.feature_versioning
        try:
            data, _ = await self.writer.store.get(znodes.FEATURE)
        except NoNode:
            defaults = {
                name: high for name, (_, high) in self.supported.items() if name not in OWN_FEATURES
            }
            await self._write(defaults if enable else {}, enable)
            return
        try:
            enabled, levels = decode_features(data)
        except MalformedZnode as error:
            logger.error("Ignoring the finalized features: %s", error)
            self.finalized = {}
            return
        misplaced = levels.keys() & OWN_FEATURES.keys()
        if misplaced:
            logger.error(
                "Removing the levels of %s from %s: they belong in %s, set them with"
                " UpdateFeatures",
                ", ".join(sorted(misplaced)),
                znodes.FEATURE,
                znodes.OWN_LEVELS,
            )
            levels = {name: level for name, level in levels.items() if name not in misplaced}
        wanted = levels if enable and enabled else {}
        if misplaced or (enabled, levels) != (enable, wanted):
            await self._write(wanted, enable)
        else:
            self.finalized = levels

    async def _write(self, levels: dict[str, int], enabled: bool) -> None:
        payload = encode_features(
            levels, enabled=enabled, version=self.versions.feature_znode_version
        )
        await self.writer.set_or_create(znodes.FEATURE, payload)
        self.finalized = levels

    async def update(
        self,
        updates: Iterable[FeatureUpdate],
        *,
        validate_only: bool = False,
        is_all_or_nothing: bool = False,
    ) -> dict[str, ApiError]:
        """UpdateFeatures: a row for each feature; the valid ones are written, with
        `is_all_or_nothing` only if all are valid. What is finalized is read again: a tool may have
        written the znode."""
        await self.load()
        await self._load_own()
        in_effect = self._in_effect()
        before = {**self.finalized, **in_effect}
        levels = dict(before)
        rows: dict[str, ApiError] = {}
        for update in updates:
            problem = self._problem(update, before)
            if problem is not None:
                rows[update.feature] = ApiError(ErrorCode.INVALID_REQUEST, problem)
                continue
            rows[update.feature] = OK
            if _is_deletion(update):
                levels.pop(update.feature)
            else:
                levels[update.feature] = update.level
        if validate_only or (is_all_or_nothing and any(row.code for row in rows.values())):
            return rows
        general = {name: level for name, level in levels.items() if name not in OWN_FEATURES}
        if general != self.finalized:
            await self._write(general, True)
        own = {name: levels.get(name, OFF) for name in self.supported if name in OWN_FEATURES}
        changed = {name: level for name, level in own.items() if level != in_effect.get(name, OFF)}
        if changed:
            await self._write_own({**self._own_levels, **changed})
        return rows

    async def _load_own(self) -> None:
        try:
            data, _ = await self.writer.store.get(znodes.OWN_LEVELS)
            self._own_levels = decode_own_levels(data)
        except NoNode:
            self._own_levels = {}
        except MalformedZnode as error:  # what is set now replaces it
            logger.error("Ignoring the levels of features: %s", error)
            self._own_levels = {}

    async def _write_own(self, levels: dict[str, int]) -> None:
        await make_paths(self.writer.store, [znodes.OWN_LEVELS.rpartition("/")[0]])
        await self.writer.set_or_create(znodes.OWN_LEVELS, encode_own_levels(levels))
        self._own_levels = levels
        logger.info("Levels of features in %s: %s", znodes.OWN_LEVELS, levels)

    def _in_effect(self) -> dict[str, int]:
        """The levels of Ottla's own features that are on."""
        supported = {name: span for name, span in self.supported.items() if name in OWN_FEATURES}
        return levels_in_effect(self._own_levels, supported, self.context.brokers.values())

    def _problem(self, update: FeatureUpdate, before: Mapping[str, int]) -> str | None:
        if not self.versions.feature_versioning:
            return "Feature versioning system is disabled by inter.broker.protocol.version."
        if not update.feature:
            return "Feature name can not be empty."
        if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            return "Received unknown upgrade type."
        existing = before.get(update.feature)
        if _is_deletion(update):
            return (
                None if existing is not None else "Can not delete non-existing finalized feature."
            )
        if update.level < 1:
            return (
                f"Can not provide versionLevel: {update.level} less than 1 without setting the "
                f"SAFE downgradeType in the request."
            )
        downgrade = update.upgrade_type == SAFE_DOWNGRADE
        if existing is not None:
            if update.level == existing:
                verb = "downgrade" if downgrade else "upgrade"
                return (
                    f"Can not {verb} a finalized feature from existing versionLevel:{existing} "
                    f"to the same value."
                )
            if update.level < existing and not downgrade:
                return (
                    f"Can not downgrade finalized feature from existing versionLevel:{existing} "
                    f"to provided versionLevel:{update.level} without setting the downgradeType "
                    f"to SAFE in the request."
                )
            if update.level > existing and update.upgrade_type != UPGRADE:
                return (
                    f"When the downgradeType is set to SAFE in the request, the provided "
                    f"versionLevel:{update.level} can not be greater than existing "
                    f"versionLevel:{existing}."
                )
        return self._unsupported(update)

    def _unsupported(self, update: FeatureUpdate) -> str | None:
        span = self.supported.get(update.feature)
        if span is None:
            return (
                "Could not apply finalized feature update because the provided feature is not "
                "supported."
            )
        if not span[0] <= update.level <= span[1]:
            return (
                f"Could not apply finalized feature update because the provided "
                f"versionLevel:{update.level} is not within the supported range {span[0]} to "
                f"{span[1]}."
            )
        for broker in self.context.brokers.values():
            low, high = broker.features.get(update.feature, (0, -1))
            if not low <= update.level <= high:
                return (
                    "Could not apply finalized feature update because brokers were found to have "
                    "incompatible versions for the feature."
                )
        return None


def _is_within(span: tuple[int, int] | None, level: int) -> bool:
    return span is not None and span[0] <= level <= span[1]


def _is_deletion(update: FeatureUpdate) -> bool:
    return update.level < 1 and update.upgrade_type != UPGRADE
