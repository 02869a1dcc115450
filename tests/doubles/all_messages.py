"""Every message that has a codec, for tests that go over all of them."""

import importlib
import os
from typing import NamedTuple

from ottla.protocol.generate import load_definitions
from ottla.protocol.message import Message
from ottla.protocol.schema import MessageSchema

#: How much longer than usual the random tests run: OTTLA_TEST_ROUNDS=20 for an evening.
ROUNDS = int(os.environ.get("OTTLA_TEST_ROUNDS", "1"))


class Defined(NamedTuple):
    """A definition and the class generated from it."""

    path: str
    schema: MessageSchema
    cls: type[Message]

    @property
    def versions(self) -> range:
        return range(self.schema.versions.first, self.schema.versions.last + 1)


def all_messages() -> list[Defined]:
    found = []
    for path, schemas in load_definitions().items():
        for schema in schemas:
            if schema.kind != "header":
                module = importlib.import_module(
                    "ottla.protocol.messages." + path.replace("/", ".")
                )
                found.append(Defined(path, schema, getattr(module, schema.name)))
    return found


ALL_MESSAGES = all_messages()
NAMES = [defined.schema.name for defined in ALL_MESSAGES]
BY_NAME = dict(zip(NAMES, ALL_MESSAGES, strict=True))
