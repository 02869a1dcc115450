import subprocess
import sys

import pytest

from ottla.protocol.message import Message
from ottla.protocol.registry import API, API_BY_NAME, ApiKey, api_name


def test_keys_by_name() -> None:
    assert API_BY_NAME["Fetch"] is API[1]
    assert ApiKey.PRODUCE == 0
    assert ApiKey.DESCRIBE_TOPIC_PARTITIONS == 75
    names = {name for name in vars(ApiKey) if not name.startswith("_")}
    assert len(names) == len(API)


@pytest.mark.parametrize("key", sorted(API))
def test_classes_fit_their_row(key: int) -> None:
    api = API[key]
    for cls, suffix in ((api.request, "Request"), (api.response, "Response")):
        assert issubclass(cls, Message)
        assert api.name + suffix == cls.NAME
        assert key == cls.API_KEY
        assert (api.min_version, api.max_version) == (cls.MIN_VERSION, cls.MAX_VERSION)
        assert api.first_flexible_version == cls.FIRST_FLEXIBLE_VERSION


def test_header_versions() -> None:
    assert API[ApiKey.CONTROLLED_SHUTDOWN].request_header_version(0) == 0
    assert API[ApiKey.CONTROLLED_SHUTDOWN].request_header_version(1) == 1
    assert API[ApiKey.PRODUCE].request_header_version(8) == 1
    assert API[ApiKey.PRODUCE].request_header_version(9) == 2
    assert API[ApiKey.PRODUCE].response_header_version(8) == 0
    assert API[ApiKey.PRODUCE].response_header_version(9) == 1
    assert API[ApiKey.SASL_HANDSHAKE].request_header_version(1) == 1
    assert API[ApiKey.API_VERSIONS].request_header_version(2) == 1
    assert API[ApiKey.API_VERSIONS].request_header_version(999) == 2
    for version in range(6):
        assert API[ApiKey.API_VERSIONS].response_header_version(version) == 0


def test_names_for_people() -> None:
    assert api_name(3) == "Metadata"
    assert api_name(999) == "API 999"
    assert repr(API[3]) == "Api(3, Metadata, versions 0-12)"


def test_classes_are_imported_on_demand() -> None:
    program = (
        "import sys, ottla.protocol.registry, ottla.protocol.headers, ottla.protocol.codec\n"
        "loaded = [m for m in sys.modules if m.startswith('ottla.protocol.messages.')]\n"
        "assert loaded == ['ottla.protocol.messages.table'], loaded\n"
        "ottla.protocol.registry.API[1].request\n"
        "assert 'ottla.protocol.messages.fetch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
