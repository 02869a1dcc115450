"""Protocol versions and what they allow."""

from __future__ import annotations

import pytest

from ottla.controller.settings import control_versions, parse_protocol_version


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("3.9", (3, 9, 99)),
        ("3.9-IV0", (3, 9, 0)),
        ("2.4-IV1", (2, 4, 1)),
        ("0.10.2-IV0", (0, 1002, 0)),
        ("0.9.0", (0, 900, 99)),
        ("4", (4, 0, 99)),
    ],
)
def test_parsing(text: str, parsed: tuple[int, int, int]) -> None:
    assert parse_protocol_version(text) == parsed


@pytest.mark.parametrize("text", ["", "three", "3.x", "3.9-IV"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError):
        parse_protocol_version(text)


@pytest.mark.parametrize(
    ("version", "leader_and_isr", "update_metadata", "stop_replica", "broker_znode"),
    [
        ("3.9", 7, 8, 4, 5),
        ("3.4-IV0", 7, 8, 4, 5),
        ("3.3", 6, 7, 3, 5),
        ("3.2-IV0", 6, 7, 3, 5),
        ("3.1", 5, 7, 3, 5),
        ("2.8-IV1", 5, 7, 3, 5),
        ("2.8-IV0", 4, 6, 3, 5),
        ("2.7", 4, 6, 3, 5),
        ("2.6", 4, 6, 3, 4),
        ("2.4-IV1", 4, 6, 2, 4),
        ("2.4-IV0", 3, 5, 1, 4),
        ("2.2", 2, 5, 1, 4),
        ("1.0", 1, 4, 0, 4),
        ("0.11.0", 0, 3, 0, 4),
        ("0.10.2", 0, 3, 0, 4),
        ("0.10.1", 0, 2, 0, 4),
        ("0.9.0", 0, 1, 0, 2),
        ("0.8.2", 0, 0, 0, 2),
    ],
)
def test_request_versions(
    version: str, leader_and_isr: int, update_metadata: int, stop_replica: int, broker_znode: int
) -> None:
    versions = control_versions(version)
    assert versions.leader_and_isr == leader_and_isr
    assert versions.update_metadata == update_metadata
    assert versions.stop_replica == stop_replica
    assert versions.broker_znode_version == broker_znode


def test_abilities() -> None:
    assert control_versions("3.9").alter_partition
    assert not control_versions("2.7-IV1").alter_partition
    assert control_versions("2.8").topic_ids
    assert not control_versions("2.7").topic_ids
    assert control_versions("3.2").leader_recovery
    assert not control_versions("3.1").leader_recovery
    assert control_versions("2.7").feature_versioning
    assert not control_versions("2.6").feature_versioning
    assert control_versions("3.2").feature_znode_version == 1
    assert control_versions("3.3").feature_znode_version == 2
