"""The table of APIs."""

from __future__ import annotations

from ottla.protocol.registry import API
from tests.unit.broker.handlers.tables import whole_table

# The APIs that Kafka 3.9 lists in ZooKeeper mode, without those that depend on settings.
OF_KAFKA = {*range(52), *range(56, 59), 60, 61, 65, 66, 67, 68, 69, 75}


def test_every_api_has_one_line_and_all_of_its_versions() -> None:
    table = whole_table()
    keys = [entry.api_key for entry in table]
    assert len(set(keys)) == len(keys)
    for entry in table:
        api = API[entry.api_key]
        assert (entry.name, entry.min_version, entry.max_version) == (
            api.name,
            api.min_version,
            api.max_version,
        )
    assert set(keys) >= OF_KAFKA


def test_requests_of_brokers_are_exempt_from_the_request_quota() -> None:
    names = {entry.name for entry in whole_table() if entry.exempt_from_request_quota}
    assert names == {
        "LeaderAndIsr",
        "StopReplica",
        "UpdateMetadata",
        "ControlledShutdown",
        "WriteTxnMarkers",
        "AlterPartition",
    }


def test_what_comes_before_authentication() -> None:
    names = {entry.name for entry in whole_table() if entry.before_authentication}
    assert names == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
