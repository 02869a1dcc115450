"""Fuzz of every decoder. The invariant: any bytes either decode or raise ProtocolError that names
the message, in time and memory that grow with the bytes, not with what they claim.

Bytes come from seeds: valid messages with damage, and pure noise. The reference codec judges each:
what it accepts the compiled one accepts with the same values, what it refuses is refused.
"""

import contextlib
import random
import tracemalloc

import pytest

from ottla.protocol import codec
from ottla.protocol.errors import ProtocolError
from ottla.protocol.framing import FrameSplitter
from ottla.protocol.headers import decode_request, decode_response
from ottla.protocol.message import Message
from ottla.protocol.registry import API
from tests.doubles.all_messages import BY_NAME, NAMES, ROUNDS
from tests.doubles.message_values import ValueMaker
from tests.doubles.reference_codec import ReferenceCodec, Values, to_values

INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0x81, 0xFF)
CLAIMS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07")
# An object with its fields and its place in a list may stand for a byte or two; this is generous
# for that and far below what believing a length of 2 GB would take.
MEMORY_PER_BYTE = 300
MEMORY_BASE = 100_000


def damage(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        position = rng.randrange(len(out) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            out[position : position + 1] = bytes([rng.choice(INTERESTING)])
        elif kind == 1:
            out[position : position + 1] = rng.randbytes(1)
        elif kind == 2:
            del out[position : position + rng.choice((1, 4, 1000))]
        elif kind == 3:
            out[position:position] = rng.randbytes(rng.choice((1, 5)))
        else:
            out[position : position + 4] = rng.choice(
                (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x0f", b"\x80\x00\x00\x00")
            )
    return bytes(out)


def judge(name: str, version: int, data: bytes) -> None:
    """Compares both decoders on the same bytes."""
    defined = BY_NAME[name]
    wanted: Values | None
    try:
        wanted = ReferenceCodec(defined.schema, version).decode(data)
    except ValueError:
        wanted = None
    message, refusal = decode_whole(name, version, data)
    if wanted is None:
        assert message is None, (name, version, data.hex())
        assert refusal is None or (refusal.api, refusal.version) == (name, version)
        assert refusal is None or refusal.field
    else:
        assert message is not None, (name, version, data.hex(), refusal)
        # By text, because not-a-number is not equal to itself.
        assert repr(to_values(message)) == repr(wanted), (name, version, data.hex())


def decode_whole(
    name: str, version: int, data: bytes
) -> tuple[Message | None, ProtocolError | None]:
    """The message if it takes up all the bytes, and the error if there was one."""
    try:
        message, position = codec.decoder(BY_NAME[name].cls, version)(data, 0)
    except ProtocolError as error:
        return None, error
    return (message if position == len(data) else None), None


@pytest.mark.parametrize("name", NAMES)
def test_damaged_messages(name: str) -> None:
    defined = BY_NAME[name]
    for version in defined.versions:
        for seed in range(6 * ROUNDS):
            rng = random.Random(f"{name} {version} {seed}")
            values = ValueMaker(defined.schema, version, rng).values()
            data = ReferenceCodec(defined.schema, version).encode(values)
            judge(name, version, damage(data, rng))


@pytest.mark.parametrize("name", NAMES)
def test_noise(name: str) -> None:
    for version in BY_NAME[name].versions:
        for seed in range(4 * ROUNDS):
            rng = random.Random(f"{name} {version} {seed}")
            noise = bytes(
                rng.choice((0, 0, 1, 2, 3, 0x80, 0xFF, rng.randrange(256)))
                for _ in range(rng.choice((0, 3, 20, 100)))
            )
            judge(name, version, noise)


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_is_refused(name: str) -> None:
    defined = BY_NAME[name]
    for version in defined.versions:
        maker = ValueMaker(defined.schema, version, random.Random(f"{name} {version}"))
        maker.elements_left = 6
        data = ReferenceCodec(defined.schema, version).encode(maker.values())
        decode = codec.decoder(defined.cls, version)
        step = max(1, len(data) // 40)
        for stop in range(0, len(data), step):
            with pytest.raises(ProtocolError):
                decode(data[:stop], 0)


def test_claimed_lengths_are_not_believed() -> None:
    """Every place of every message is overwritten with lengths of up to 4 GB."""
    for name in NAMES:
        defined = BY_NAME[name]
        version = defined.versions[-1]
        maker = ValueMaker(defined.schema, version, random.Random(name))
        maker.elements_left = 8
        data = ReferenceCodec(defined.schema, version).encode(maker.values())
        decode = codec.decoder(defined.cls, version)
        step = max(1, len(data) // (12 * ROUNDS))
        tracemalloc.start()
        try:
            for position in range(0, len(data), step):
                for claim in CLAIMS:
                    bad = data[:position] + claim + data[position:]
                    tracemalloc.reset_peak()
                    before = tracemalloc.get_traced_memory()[0]
                    with contextlib.suppress(ProtocolError):
                        decode(bad, 0)
                    used = tracemalloc.get_traced_memory()[1] - before
                    assert used < MEMORY_BASE + MEMORY_PER_BYTE * len(bad), (name, position, claim)
        finally:
            tracemalloc.stop()


def test_frames_of_anything() -> None:
    for seed in range(3000 * ROUNDS):
        rng = random.Random(seed)
        key = rng.choice((*API, 99, -1))
        version = rng.choice((0, 1, 9, 12, -1, 32767))
        head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
        frame = head + rng.randbytes(rng.choice((0, 4, 6, 30)))
        for buffer in (frame, bytearray(frame), memoryview(frame)):
            with contextlib.suppress(ProtocolError):
                decode_request(buffer)
        if key in API:
            with contextlib.suppress(ProtocolError):
                decode_response(frame, key, API[key].max_version)


def test_streams_cut_anywhere_give_the_same_frames() -> None:
    for seed in range(200 * ROUNDS):
        rng = random.Random(seed)
        frames = [rng.randbytes(rng.choice((0, 1, 5, 300))) for _ in range(rng.randrange(6))]
        stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
        splitter = FrameSplitter(max_frame_size=300)
        got: list[bytes] = []
        while stream:
            count = rng.choice((1, 2, 7, 1000))
            splitter.feed(stream[:count])
            stream = stream[count:]
            while (frame := splitter.next_frame()) is not None:
                got.append(bytes(frame))
        assert got == frames, seed
