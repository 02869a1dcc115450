"""The options for reading tiered segments from their store."""

from __future__ import annotations

import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.options.remote_options import RemoteOptions

FOLDER = {
    "ottla.remote.rsm.config.storage.backend.class": "filesystem",
    "ottla.remote.rsm.config.storage.root": "/segments",
}
DIRECT = {"ottla.remote.read": "direct"}


def parse(given: dict[str, str]) -> RemoteOptions:
    base = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    return parse_source_options(base | given).remote


def test_the_broker_reads_by_default() -> None:
    assert not parse({}).is_direct
    assert not parse(FOLDER).is_direct, "settings alone change nothing"


def test_settings_are_kept_and_not_shown() -> None:
    found = parse(DIRECT | FOLDER | {"ottla.remote.onError": "fail"})
    assert found.is_direct
    assert found.on_error == "fail"
    assert dict(found.settings)["storage.root"] == "/segments"
    assert "/segments" not in repr(found)


def test_references_are_left_to_the_executors() -> None:
    found = parse(DIRECT | FOLDER | {"ottla.remote.rsm.config.storage.root": "${env:ROOT}"})
    assert dict(found.settings)["storage.root"] == "${env:ROOT}"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ottla.remote.read": "store"}, r"INVALID_OPTION.*ottla\.remote\.read"),
        (DIRECT, r"MISSING_OPTION.*where the segments are"),
        (DIRECT | FOLDER | {"ottla.remote.config.file": "/f"}, "CONFLICTING_OPTIONS"),
        (
            DIRECT | FOLDER | {"ottla.remote.rsm.config.encryption.enabled": "true"},
            r"INVALID_OPTION.*encryption is not supported",
        ),
        (DIRECT | {"ottla.remote.rsm.config.storage.root": "/"}, r"backend\.class is not set"),
        ({"ottla.remote.mode": "direct"}, r"UNKNOWN_OPTION.*ottla\.remote\.read"),
    ],
)
def test_errors(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConnectorError, match=text):
        parse(given)
