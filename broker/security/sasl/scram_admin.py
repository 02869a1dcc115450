"""Changes SCRAM credentials in a znode tree without a running broker.

For the first user of a broker with its own znode tree: `ottla start --add-scram` and
`ottla users add --data-dir`. `parse_scram_option` reads the argument that Kafka's
`kafka-storage format --add-scram` has.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.text_file import PASSWORD_BYTES_MAX, read_text_file
from ottla.broker.security.sasl.scram_credentials import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    decode_credential,
    encode_credential,
    from_password,
)
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import (
    change_config,
    entities_of,
    entity_path,
    read_config,
    read_configs,
)
from ottla.controller.tree.store import ZnodeStore

logger = logging.getLogger("ottla.audit")

_OPTION = re.compile(r"(?P<mechanism>[A-Z0-9-]+)=\[(?P<parts>.*)\]", re.DOTALL)
_PARTS = re.compile(r"(?:^|,)(name|password|password-file|iterations)=")


class NewUser(NamedTuple):
    """One `--add-scram`."""

    mechanism: str
    name: str
    password: str
    iterations: int = MIN_ITERATIONS

    def __repr__(self) -> str:
        return f"NewUser({self.mechanism}, {self.name})"


def parse_scram_option(text: str) -> NewUser:
    """`SCRAM-SHA-512=[name=alice,password=...]`; `password-file=` names a file instead, and
    `iterations=` is optional. Raises ConfigError, without the password."""
    found = _OPTION.fullmatch(text)
    if found is None or found["mechanism"] not in HASHES:
        raise ConfigError(
            f"--add-scram: write {' or '.join(HASHES)} as SCRAM-SHA-512=[name=alice,password=...]."
        )
    pieces = _PARTS.split(found["parts"])
    parts = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    password = parts.get("password", "")
    if "password-file" in parts:
        try:
            password = read_text_file(parts["password-file"], PASSWORD_BYTES_MAX).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--add-scram: cannot read the password file: {error}.") from None
    if pieces[0] or not parts.get("name") or not password:
        raise ConfigError("--add-scram: name= and password= (or password-file=) are needed.")
    iterations = parts.get("iterations", str(MIN_ITERATIONS))
    if not iterations.isdecimal() or not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise ConfigError(
            f"--add-scram: iterations is a number from {MIN_ITERATIONS} to {MAX_ITERATIONS}."
        )
    return NewUser(found["mechanism"], parts["name"], password, int(iterations))


async def add_credential(
    store: ZnodeStore, user: str, password: str, mechanism: str, iterations: int
) -> None:
    """Sets the password of a user for one mechanism; durable when it returns."""
    entity = entity_path(znodes.ENTITY_USERS, user)
    credential = from_password(mechanism, password, iterations=iterations)

    async def change(properties: dict[str, str]) -> dict[str, str]:
        return {**properties, mechanism: encode_credential(credential)}

    await change_config(store, entity, change)


async def add_users(store: ZnodeStore, users: Iterable[NewUser]) -> None:
    """`add_credential` for each."""
    for each in users:
        await add_credential(store, each.name, each.password, each.mechanism, each.iterations)
        logger.info("Set the %s password of user %s (--add-scram)", each.mechanism, each.name)


async def remove_credentials(store: ZnodeStore, user: str, mechanisms: list[str]) -> list[str]:
    """Removes the credentials for these mechanisms, or all; returns which were there."""
    entity = entity_path(znodes.ENTITY_USERS, user)
    wanted = mechanisms or list(HASHES)
    removed: list[str] = []

    async def change(properties: dict[str, str]) -> dict[str, str]:
        removed[:] = [each for each in wanted if each in properties]
        return {name: value for name, value in properties.items() if name not in removed}

    if not (await read_config(store, entity)).keys().isdisjoint(wanted):
        await change_config(store, entity, change)
    return removed


async def credentials_of(store: ZnodeStore) -> dict[str, dict[str, ScramCredential]]:
    """By user and mechanism; what cannot be decoded is left out."""
    entities = [
        each for each in await entities_of(store, znodes.ENTITY_USERS) if each.count("/") == 1
    ]
    found: dict[str, dict[str, ScramCredential]] = {}
    for entity, properties in (await read_configs(store, entities)).items():
        name = entity.partition("/")[2]
        if name == znodes.DEFAULT_ENTITY:
            continue
        for mechanism in HASHES:
            if mechanism not in properties:
                continue
            try:
                credential = decode_credential(properties[mechanism])
            except ValueError:
                continue
            found.setdefault(znodes.desanitize(name), {})[mechanism] = credential
    return found
