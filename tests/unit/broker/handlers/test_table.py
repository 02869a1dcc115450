"""What is served, as a table."""

from __future__ import annotations

from protocol.registry import API
from tests.unit.broker.handlers.tables import whole_table

# What Kafka 3.9 lists in ZooKeeper mode and this broker does not: delegation tokens.
LEFT_OUT = {38, 39, 40, 41}


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
    assert not LEFT_OUT & set(keys)


def test_what_comes_before_authentication() -> None:
    names = {entry.name for entry in whole_table() if entry.before_authentication}
    assert names == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
