"""Finalised features (KIP-584)."""

from __future__ import annotations

import pytest

from ottla.controller.admin.features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
)
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.controller.tree.znodes_admin import decode_features, encode_features
from ottla.protocol.errors import ErrorCode
from tests.doubles.controller_cluster import Cluster, settle


def node(cluster: Cluster) -> tuple[bool, dict[str, int]]:
    return decode_features(cluster.tree.nodes[znodes.FEATURE].data)


async def start(before: bytes | None = None, protocol: str = "3.9") -> Cluster:
    cluster = Cluster(
        (1, 2),
        features={"f": (1, 5)},
        settings=ControllerSettings(inter_broker_protocol_version=protocol),
    )
    if protocol != "3.9":
        cluster.channels.silent = {1, 2}
    if before is not None:
        cluster.create_node(znodes.FEATURE, before)
    await cluster.start()
    return cluster


async def update(
    cluster: Cluster, *updates: FeatureUpdate, validate_only: bool = False
) -> list[int]:
    rows = await cluster.controller.update_features(updates, validate_only=validate_only)
    return [row.code for row in rows.values()]


@pytest.mark.parametrize(
    ("before", "protocol", "after"),
    [
        (None, "3.9", (True, {"f": 5})),  # a new cluster starts with all it can do
        (None, "2.6", (False, {})),
        (encode_features({"f": 2}, enabled=True), "3.9", (True, {"f": 2})),
        (encode_features({"f": 2}, enabled=False), "3.9", (True, {})),
        (encode_features({"f": 2}, enabled=True), "2.6", (False, {})),
    ],
)
async def test_start(
    before: bytes | None, protocol: str, after: tuple[bool, dict[str, int]]
) -> None:
    cluster = await start(before, protocol)
    assert node(cluster) == after
    assert cluster.controller._lifecycle.features.finalized == after[1]
    await cluster.stop()


async def test_node_that_cannot_be_read_is_left_alone() -> None:
    cluster = await start(b"{")
    assert cluster.tree.nodes[znodes.FEATURE].data == b"{"
    assert cluster.controller.is_active
    await cluster.stop()


async def test_updates_are_written() -> None:
    cluster = await start(encode_features({"f": 2}, enabled=True))
    assert await update(cluster, FeatureUpdate("f", 4)) == [0]
    assert node(cluster) == (True, {"f": 4})
    assert await update(cluster, FeatureUpdate("f", 3, SAFE_DOWNGRADE)) == [0]
    assert node(cluster) == (True, {"f": 3})
    assert await update(cluster, FeatureUpdate("f", 0, SAFE_DOWNGRADE)) == [0]
    assert node(cluster) == (True, {})
    assert await update(cluster, FeatureUpdate("f", 1), validate_only=True) == [0]
    assert node(cluster) == (True, {})
    await cluster.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        FeatureUpdate("", 1),
        FeatureUpdate("f", 3, 0),
        FeatureUpdate("f", 0, UPGRADE),
        FeatureUpdate("f", 2, UPGRADE),
        FeatureUpdate("f", 1, UPGRADE),
        FeatureUpdate("f", 3, SAFE_DOWNGRADE),
        FeatureUpdate("f", 1, UNSAFE_DOWNGRADE),
        FeatureUpdate("f", 9, UPGRADE),
        FeatureUpdate("unknown", 1),
        FeatureUpdate("unknown", 0, SAFE_DOWNGRADE),
    ],
)
async def test_refusals(wrong: FeatureUpdate) -> None:
    cluster = await start(encode_features({"f": 2}, enabled=True))
    rows = await cluster.controller.update_features([wrong])
    assert rows[wrong.feature].code == ErrorCode.INVALID_REQUEST
    assert rows[wrong.feature].message
    assert node(cluster) == (True, {"f": 2})
    await cluster.stop()


async def test_level_that_a_broker_does_not_support() -> None:
    cluster = await start(encode_features({"f": 2}, enabled=True))
    await cluster.add_broker(3, features={"f": (1, 3)})
    assert await update(cluster, FeatureUpdate("f", 4)) == [ErrorCode.INVALID_REQUEST]
    assert await update(cluster, FeatureUpdate("f", 3)) == [0]
    await cluster.stop()


async def test_old_protocol_has_no_features() -> None:
    cluster = await start(None, "2.6")
    await settle()
    assert await update(cluster, FeatureUpdate("f", 1)) == [ErrorCode.INVALID_REQUEST]
    await cluster.stop()


async def test_an_update_starts_from_what_the_znode_holds() -> None:
    """Another tool wrote it while this controller was active."""
    cluster = await start(encode_features({"f": 2}, enabled=True))
    await cluster.store.set(znodes.FEATURE, encode_features({"f": 4}, enabled=True))
    assert await update(cluster, FeatureUpdate("f", 3)) == [ErrorCode.INVALID_REQUEST]
    assert await update(cluster, FeatureUpdate("f", 5)) == [ErrorCode.NONE]
    assert node(cluster) == (True, {"f": 5})


async def test_all_or_nothing() -> None:
    cluster = await start(encode_features({"f": 2}, enabled=True))
    wanted = (FeatureUpdate("f", 4), FeatureUpdate("g", 1))
    rows = await cluster.controller.update_features(wanted, is_all_or_nothing=True)
    assert [row.code for row in rows.values()] == [0, ErrorCode.INVALID_REQUEST]
    assert node(cluster) == (True, {"f": 2})
    rows = await cluster.controller.update_features(wanted[:1], is_all_or_nothing=True)
    assert [row.code for row in rows.values()] == [0]
    assert node(cluster) == (True, {"f": 4})


async def test_features_that_were_written_by_hand_have_no_effect() -> None:
    """With them Kafka's brokers end; here the cluster goes on, and a tool removes them."""
    by_hand = {"f": 9, "kraft.version": 1, "metadata.version": 21}
    cluster = await start(encode_features(by_hand, enabled=True))
    assert set(cluster.controller.context.brokers) == {1, 2}
    updates = [FeatureUpdate(name, 0, SAFE_DOWNGRADE) for name in by_hand]
    assert await update(cluster, *updates) == [0, 0, 0]
    assert node(cluster) == (True, {})
    await cluster.stop()


async def test_a_broker_without_a_finalized_level_is_left_out() -> None:
    cluster = await start(encode_features({"f": 4}, enabled=True))
    await cluster.add_broker(3, features={"f": (1, 3)})
    assert set(cluster.controller.context.brokers) == {1, 2}
    await cluster.stop()
