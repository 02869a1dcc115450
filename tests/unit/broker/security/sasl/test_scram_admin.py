"""Users of --add-scram, and credentials in a znode tree without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.security.sasl.scram_admin import (
    NewUser,
    add_credential,
    credentials_of,
    parse_scram_option,
    remove_credentials,
)
from ottla.broker.security.sasl.scram_credentials import from_password
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.entity_configs import read_config, write_config

MECHANISM = "SCRAM-SHA-256"


def test_the_argument_is_kafkas() -> None:
    text = "SCRAM-SHA-512=[name=alice,password=a,b=c]"
    assert parse_scram_option(text) == NewUser("SCRAM-SHA-512", "alice", "a,b=c")
    text = "SCRAM-SHA-256=[name=a b,iterations=8192,password=x]"
    assert parse_scram_option(text) == NewUser("SCRAM-SHA-256", "a b", "x", 8192)
    assert "secret" not in repr(NewUser(MECHANISM, "alice", "secret"))


def test_a_password_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("pass word\n")
    found = parse_scram_option(f"SCRAM-SHA-256=[name=a,password-file={path}]")
    assert found.password == "pass word"


def test_a_byte_order_mark_is_no_part_of_a_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b"\xef\xbb\xbfpass word\r\n")
    found = parse_scram_option(f"SCRAM-SHA-256=[name=a,password-file={path}]")
    assert found.password == "pass word"


def test_a_file_without_an_end_is_no_password() -> None:
    with pytest.raises(ConfigError, match="larger than 65536 bytes"):
        parse_scram_option("SCRAM-SHA-256=[name=a,password-file=/dev/zero]")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "alice:secret",
        "PLAIN=[name=a,password=secret]",
        "SCRAM-SHA-256=[name=,password=secret]",
        "SCRAM-SHA-256=[password=secret]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[what,name=a,password=secret]",
        "SCRAM-SHA-256=[name=a,password=secret,iterations=many]",
        "SCRAM-SHA-256=[name=a,password=secret,iterations=1]",
        "SCRAM-SHA-256=[name=a,password-file=/absent/secret-file]",
    ],
)
def test_what_is_no_user_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--add-scram") as caught:
        parse_scram_option(text)
    assert "password=secret" not in str(caught.value)


async def test_credentials_are_added_and_removed() -> None:
    store = EmbeddedStore(None)
    await store.connect()
    await write_config(store, "users/a%20b", {"producer_byte_rate": "1"})
    assert await credentials_of(store) == {}
    for mechanism in (MECHANISM, "SCRAM-SHA-512"):
        await add_credential(store, "a b", "secret", mechanism, 4096)
    found = (await credentials_of(store))["a b"]
    credential = found[MECHANISM]
    assert credential == from_password(MECHANISM, "secret", salt=credential.salt)
    assert await remove_credentials(store, "a b", [MECHANISM]) == [MECHANISM]
    assert list((await credentials_of(store))["a b"]) == ["SCRAM-SHA-512"]
    assert await remove_credentials(store, "a b", []) == ["SCRAM-SHA-512"]
    assert await remove_credentials(store, "a b", []) == []
    # Quotas of the user stay.
    assert await read_config(store, "users/a%20b") == {"producer_byte_rate": "1"}
    await store.close()


async def test_what_cannot_be_decoded_is_left_out() -> None:
    store = EmbeddedStore(None)
    await store.connect()
    await write_config(store, "users/a", {MECHANISM: "nonsense"})
    await write_config(store, "users/<default>", {"producer_byte_rate": "1"})
    assert await credentials_of(store) == {}
    await store.close()
