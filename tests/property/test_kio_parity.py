"""The kio package, an independent implementation, reads and writes the same bytes.

kio follows a newer Kafka: it lacks old versions and the APIs of ZooKeeper mode. It turns some
fields into richer types (error codes, durations, timestamps), so their values stay within those.
"""

import io
import random
import re
from pkgutil import resolve_name
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from ottla.protocol import codec
from ottla.protocol.schema import Field
from tests.doubles.all_messages import BY_NAME, NAMES, ROUNDS, Defined
from tests.doubles.message_values import ValueMaker
from tests.doubles.reference_codec import Values, to_message

ENTITY_TYPES = {
    "request": EntityType.request,
    "response": EntityType.response,
    "message": EntityType.data,
}
ERROR_CODES = [code.value for code in KioErrorCode]


class TameValueMaker(ValueMaker):
    """Values that kio's types have room for, and no tags that it does not know."""

    def unknown_tags(self, fields: tuple[Field, ...]) -> dict[int, bytes]:
        return {}

    def field(self, field: Field) -> Any:
        if field.type == "int16" and field.name.endswith("error_code"):
            return self.rng.choice(ERROR_CODES)
        return super().field(field)

    def value(self, field: Field, type_name: str) -> Any:
        if type_name == "int64" and ("time" in field.name or field.name.endswith("_ms")):
            return self.rng.randrange(1_500_000_000_000, 1_800_000_000_000)
        return super().value(field, type_name)


def kio_classes(defined: Defined) -> dict[int, type]:
    """kio's class for each version that both know."""
    schema = defined.schema
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", schema.name).lower()
    if schema.kind != "message":
        name = defined.path
    versions = schema_name_map.get(name, {})
    kind = ENTITY_TYPES[schema.kind]
    return {
        version: resolve_name(versions[version][kind])
        for version in defined.versions
        if version in versions and kind in versions[version]
    }


KNOWN_TO_BOTH = [name for name in NAMES if kio_classes(BY_NAME[name])]


def test_most_messages_are_known_to_both() -> None:
    """Guards the lookup above: were it wrong, the test below would check nothing."""
    assert len(KNOWN_TO_BOTH) >= 120
    assert {"ProduceRequest", "FetchResponse", "ConsumerProtocolSubscription"} < {*KNOWN_TO_BOTH}


@pytest.mark.parametrize("name", KNOWN_TO_BOTH)
def test_kio_reads_what_we_write_and_writes_it_alike(name: str) -> None:
    defined = BY_NAME[name]
    for version, kio_class in kio_classes(defined).items():
        read, write = entity_reader(kio_class), entity_writer(kio_class)
        encode = codec.encoder(defined.cls, version)
        decode = codec.decoder(defined.cls, version)
        for seed in range(3 * ROUNDS):
            where = (name, version, seed)
            values: Values = TameValueMaker(defined.schema, version, random.Random(seed)).values()
            message = to_message(defined.cls, defined.schema, values)
            data = encode(message)
            entity, size = read(data, 0)
            assert size == len(data), where
            written = io.BytesIO()
            write(written, entity)
            assert written.getvalue() == data, where
            assert decode(written.getvalue(), 0) == (message, len(data)), where
