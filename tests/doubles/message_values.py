"""Random values for messages, in the dictionary form of `reference_codec`.

Everything comes from the `random.Random` that is passed in, so a seed is all it takes to see a
failure again.
"""

import random
from typing import Any

from ottla.protocol.schema import PRIMITIVES, Field, MessageSchema
from tests.doubles.reference_codec import ReferenceCodec, Values

INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = (
    "",
    "a",
    "orders",
    "topic.with-all_9",
    "\u017elu\u0165ou\u010dk\u00fd",
    "\U0001f980",
    "x" * 200,
)


class ValueMaker:
    """Makes values that `version` of `message` can carry: fields of other versions keep their
    default, so a decoded message equals what was encoded."""

    def __init__(self, message: MessageSchema, version: int, rng: random.Random) -> None:
        self.codec = ReferenceCodec(message, version)
        self.message = message
        self.rng = rng
        # Nested arrays multiply; once this many elements are made, arrays are empty.
        self.elements_left = 400

    def values(self) -> Values:
        return self.struct(self.message.fields)

    def struct(self, fields: tuple[Field, ...]) -> Values:
        values = self.codec.defaults(fields)
        for field in fields:
            if self.codec.plain(field) or (self.codec.tagged(field) and self.rng.random() < 0.5):
                values[field.name] = self.field(field)
        if self.codec.flexible and self.rng.random() < 0.1:
            values["unknown_tagged_fields"] = self.unknown_tags(fields) or None
        self.drop_default_structs(fields, values)
        return values

    def drop_default_structs(self, fields: tuple[Field, ...], values: Values) -> None:
        """A tagged struct that equals its default is not sent and comes back as the default."""
        for field in fields:
            if self.codec.tagged(field) and field.is_struct and values[field.name] is not None:
                defaults = self.codec.defaults(self.codec.fields_of(field.type))
                if values[field.name] == defaults:
                    values[field.name] = self.codec.default(field)

    def unknown_tags(self, fields: tuple[Field, ...]) -> dict[int, bytes]:
        known = {field.tag for field in fields}
        tags = {self.rng.choice((5, 9, 127, 128, 40000)) for _ in range(2)} - known
        return {tag: self.rng.randbytes(self.rng.choice((0, 1, 130))) for tag in tags}

    def field(self, field: Field) -> Any:
        if self.codec.nullable(field) and self.rng.random() < 0.25:
            return None
        if field.is_array:
            return [self.value(field, field.element_type) for _ in range(self.count(field))]
        return self.value(field, field.type)

    def count(self, field: Field) -> int:
        longest = 2 if field.element_type not in PRIMITIVES else 18
        count = self.rng.choice((0, 1, 1, 2, 3, longest))
        if self.rng.random() < 0.02:
            count = 130
        count = min(count, self.elements_left)
        self.elements_left -= count
        return count

    def value(self, field: Field, type_name: str) -> Any:
        if type_name not in PRIMITIVES:
            return self.struct(self.codec.fields_of(type_name))
        if type_name == "bool":
            return self.rng.random() < 0.5
        if type_name in INTEGER_BITS:
            return self.integer(INTEGER_BITS[type_name])
        if type_name == "uint16":
            return self.rng.choice((0, 1, 9092, 0x7FFF, 0x8000, 0xFFFF))
        if type_name == "float64":
            return self.rng.choice((0.0, -1.5, 1e300, 1024.25))
        if type_name == "uuid":
            return self.rng.choice((bytes(16), self.rng.randbytes(16)))
        if type_name == "string":
            return self.rng.choice(TEXTS)
        return self.rng.randbytes(self.rng.choice((0, 1, 20, 126, 127, 128, 300)))

    def integer(self, bits: int) -> int:
        limit = 1 << (bits - 1)
        return self.rng.choice((0, 1, -1, 7, limit - 1, -limit, self.rng.randrange(-limit, limit)))
