"""UpdateFeatures of `transaction.version`, which is not in `/feature`."""

from __future__ import annotations

import pytest

from ottla.controller.admin.features import SAFE_DOWNGRADE, FeatureUpdate
from ottla.controller.admin.own_features import TRANSACTION_VERSION, own_features
from ottla.controller.tree import znodes
from ottla.controller.tree.znodes_admin import (
    decode_features,
    decode_own_levels,
    encode_features,
    encode_own_levels,
)
from ottla.protocol.errors import ErrorCode
from tests.doubles.controller_cluster import Cluster

OTTLA = own_features("3.9")
DOWN = SAFE_DOWNGRADE


async def start(before: bytes | None = None, own: bytes | None = None) -> Cluster:
    cluster = Cluster((1, 2), features={"f": (1, 5), **OTTLA})
    if before is not None:
        cluster.create_node(znodes.FEATURE, before)
    if own is not None:
        cluster.create_node("/ottla", b"")
        cluster.create_node(znodes.OWN_LEVELS, own)
    await cluster.start()
    return cluster


def in_feature(cluster: Cluster) -> dict[str, int]:
    return decode_features(cluster.tree.nodes[znodes.FEATURE].data)[1]


def in_own_znode(cluster: Cluster) -> dict[str, int] | None:
    node = cluster.tree.nodes.get(znodes.OWN_LEVELS)
    return None if node is None else decode_own_levels(node.data)


async def test_a_new_cluster_has_the_default() -> None:
    cluster = await start()
    assert in_feature(cluster) == {"f": 5}
    assert in_own_znode(cluster) is None
    await cluster.stop()


async def test_updates() -> None:
    cluster = await start()
    for level, kind, expected, stored in (
        (2, 1, ErrorCode.INVALID_REQUEST, None),  # it is 2
        (1, 1, ErrorCode.INVALID_REQUEST, None),
        (3, 1, ErrorCode.INVALID_REQUEST, None),
        (1, DOWN, 0, 1),
        (0, DOWN, 0, 0),
        (0, DOWN, ErrorCode.INVALID_REQUEST, 0),
        (2, 1, 0, 2),
    ):
        update = FeatureUpdate(TRANSACTION_VERSION, level, kind)
        rows = await cluster.controller.update_features([update], validate_only=True)
        assert rows[TRANSACTION_VERSION].code == expected
        rows = await cluster.controller.update_features([update])
        assert rows[TRANSACTION_VERSION].code == expected
        found = in_own_znode(cluster)
        assert (found and found[TRANSACTION_VERSION]) == stored
    assert in_feature(cluster) == {"f": 5}
    await cluster.stop()


@pytest.mark.parametrize("own", [encode_own_levels({TRANSACTION_VERSION: 7}), b"{"])
async def test_a_level_that_we_do_not_have_is_replaced(own: bytes) -> None:
    cluster = await start(own=own)
    rows = await cluster.controller.update_features([FeatureUpdate(TRANSACTION_VERSION, 2)])
    expected = 0 if own != b"{" else ErrorCode.INVALID_REQUEST
    assert rows[TRANSACTION_VERSION].code == expected
    await cluster.stop()


async def test_a_level_in_the_wrong_place_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    """It would keep Kafka 3 from starting, and brokers that do not have it from the cluster."""
    cluster = await start(encode_features({"f": 2, TRANSACTION_VERSION: 9}, enabled=True))
    assert in_feature(cluster) == {"f": 2}
    assert sorted(cluster.controller._lifecycle.context.brokers) == [1, 2]
    assert "Removing the levels of transaction.version from /feature" in caplog.text
    await cluster.stop()
