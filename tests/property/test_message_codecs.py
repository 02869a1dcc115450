"""The compiled codecs agree with the reference codec, byte for byte, for every version.

Random values come from seeds; a failure shows the message, the version and the seed.
"""

import random

import pytest

from ottla.protocol import codec
from ottla.protocol.errors import ProtocolError
from ottla.protocol.schema import Field
from tests.doubles.all_messages import BY_NAME, NAMES, ROUNDS
from tests.doubles.message_values import ValueMaker
from tests.doubles.reference_codec import ReferenceCodec, WrongBytesError, to_message, to_values

SEEDS = range(5 * ROUNDS)


class LongArrays(ValueMaker):
    """Counts on both sides of what compiled code treats apart, whatever the nesting makes of it."""

    made = 0

    def count(self, field: Field) -> int:
        self.made += 1
        count = min((130, 1, 17, 16, 15)[self.made % 5], self.elements_left)
        self.elements_left -= count
        return count


@pytest.mark.parametrize("name", NAMES)
def test_encode_and_decode_agree_with_the_reference(name: str) -> None:
    defined = BY_NAME[name]
    for version in defined.versions:
        reference = ReferenceCodec(defined.schema, version)
        encode = codec.encoder(defined.cls, version)
        decode = codec.decoder(defined.cls, version)
        for seed in SEEDS:
            where = (name, version, seed)
            values = ValueMaker(defined.schema, version, random.Random(seed)).values()
            message = to_message(defined.cls, defined.schema, values)
            data = encode(message)
            assert data == reference.encode(values), where
            decoded, position = decode(data, 0)
            assert position == len(data), where
            assert decoded == message, where
            assert to_values(decoded) == reference.decode(data) == values, where


@pytest.mark.parametrize("name", NAMES)
def test_values_of_other_versions_are_dropped_or_refused_alike(name: str) -> None:
    """A message filled for one version is encoded in another: ignorable fields are dropped, others
    are refused, and both codecs do the same."""
    defined = BY_NAME[name]
    for seed in range(2 * ROUNDS):
        for filled in defined.versions:
            maker = ValueMaker(defined.schema, filled, random.Random(seed))
            values = maker.values()
            message = to_message(defined.cls, defined.schema, values)
            version = random.Random(seed + filled).choice(defined.versions)
            where = (name, filled, version, seed)
            try:
                wanted = ReferenceCodec(defined.schema, version).encode(values)
            except WrongBytesError:
                with pytest.raises(ProtocolError) as caught:
                    codec.encoder(defined.cls, version)(message)
                assert (caught.value.api, caught.value.version) == (name, version), where
                assert caught.value.field, where
            else:
                assert codec.encoder(defined.cls, version)(message) == wanted, where


@pytest.mark.parametrize("name", ["ProduceRequest", "FetchResponse", "MetadataResponse"])
@pytest.mark.parametrize("buffer_type", [bytes, bytearray, memoryview])
def test_every_buffer_type_and_position_decodes_alike(name: str, buffer_type: type) -> None:
    defined = BY_NAME[name]
    for version in defined.versions:
        values = ValueMaker(defined.schema, version, random.Random(version)).values()
        message = to_message(defined.cls, defined.schema, values)
        data = codec.encoder(defined.cls, version)(message)
        buffer = buffer_type(b"before" + data + b"after")
        decoded, position = codec.decoder(defined.cls, version)(buffer, 6)
        assert decoded == message
        assert position == 6 + len(data)


@pytest.mark.parametrize("name", ["FetchRequest", "MetadataResponse", "OffsetFetchResponse"])
def test_long_arrays_and_texts(name: str) -> None:
    """Counts and lengths whose varints take two and three bytes."""
    defined = BY_NAME[name]
    for version in defined.versions:
        values = LongArrays(defined.schema, version, random.Random(7)).values()
        message = to_message(defined.cls, defined.schema, values)
        data = codec.encoder(defined.cls, version)(message)
        assert data == ReferenceCodec(defined.schema, version).encode(values)
        assert codec.decoder(defined.cls, version)(data, 0) == (message, len(data))
