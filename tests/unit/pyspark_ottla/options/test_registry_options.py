"""The options of a schema registry."""

import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.registry_options import RegistryOptions, parse_registry
from pyspark_ottla.options.values import OptionReader

URL = "schema.registry.url"


def parse(**given: str) -> RegistryOptions | None:
    return parse_registry(
        OptionReader({"schema.registry." + name.replace("_", "."): given[name] for name in given})
    )


def test_addresses_and_credentials() -> None:
    found = parse(url="http://a:8081/, https://b/path", basic_auth_user_info="${env:X}:y")
    assert found == RegistryOptions(("http://a:8081", "https://b/path"), user_info="${env:X}:y")
    assert found.name == "the schema registry http://a:8081, https://b/path"
    assert parse() is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"url": "localhost:8081"}, "Expected http://host:port or https://host:port"),
        ({"url": "http://u:p@h"}, "holds a user or a password"),
        ({"timeout_ms": "5"}, "schema.registry.timeout.ms is set, but schema.registry.url is not"),
        (
            {"url": "http://h", "basic_auth_user_info": "a:b", "bearer_auth_token": "c"},
            "are both set",
        ),
        ({"url": "http://h", "basic_auth_user_info": "a"}, "has no colon"),
        ({"url": "http://h", "ssl_key_location": "k"}, "ssl.certificate.location is not"),
        ({"url": "http://h", "timeout_ms": "0"}, "at least 1"),
    ],
)
def test_mistakes(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConnectorError) as raised:
        parse(**given)
    assert text in str(raised.value)
