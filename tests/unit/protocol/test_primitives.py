import pytest

from ottla.protocol.primitives import (
    IntegerReaders,
    Malformed,
    RunPackers,
    bad_count,
    bad_length,
    encode_string_length,
    encode_tagged_fields,
    encode_unsigned_varint,
    read_long_string_length,
    read_tagged_fields,
    read_unsigned_varint,
)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**21 - 1, "ffff7f"),
        (2**28 - 1, "ffffff7f"),
        (2**28, "8080808001"),
        (2**31 - 1, "ffffffff07"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_unsigned_varints(value: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert encode_unsigned_varint(value) == data
    assert read_unsigned_varint(b"x" + data + b"y", 1) == (value, 1 + len(data))


@pytest.mark.parametrize("encoded", ["ffffffff10", "ffffffff7f", "8080808080", "ffffffffff01"])
def test_varints_past_32_bits_are_malformed(encoded: str) -> None:
    with pytest.raises(Malformed, match="longer than 32 bits"):
        read_unsigned_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["", "80", "ffff", "ffffffff"])
def test_varints_cut_short_end_the_buffer(encoded: str) -> None:
    with pytest.raises(IndexError):
        read_unsigned_varint(bytes.fromhex(encoded), 0)


def test_padded_varints_are_read_as_java_reads_them() -> None:
    assert read_unsigned_varint(bytes.fromhex("8000"), 0) == (0, 2)


@pytest.mark.parametrize("value", [-1, 2**32])
def test_values_outside_32_bits_cannot_be_encoded(value: int) -> None:
    with pytest.raises(Malformed):
        encode_unsigned_varint(value)


def test_strings_have_15_bits_of_length() -> None:
    data = encode_unsigned_varint(32768)
    assert read_long_string_length(data, 1, data[0]) == (32768, 3)
    assert encode_string_length(32768) == data
    longer = encode_unsigned_varint(32769)
    with pytest.raises(Malformed, match="32768 bytes is longer"):
        read_long_string_length(longer, 1, longer[0])
    with pytest.raises(Malformed, match="32768 bytes is longer"):
        encode_string_length(32769)


def test_tagged_sections_come_back_sorted() -> None:
    section = encode_tagged_fields({300: b"", 2: b"two"}, {1: b"one"})
    assert section == bytes.fromhex("03 0103 6f6e65 0203 74776f ac0200".replace(" ", ""))
    assert read_tagged_fields(section, 1, section[0], len(section)) == (
        {1: b"one", 2: b"two", 300: b""},
        len(section),
    )


def test_many_tagged_fields() -> None:
    fields = {tag: bytes([tag % 256]) for tag in range(200)}
    section = encode_tagged_fields({}, fields)
    assert read_tagged_fields(section, 1, section[0], len(section)) == (fields, len(section))


def test_no_tagged_fields() -> None:
    assert encode_tagged_fields({}, None) == b"\x00"
    assert read_tagged_fields(b"\x80\x00", 1, 0x80, 2) == (None, 2)


def test_an_unknown_tag_may_not_be_a_known_one() -> None:
    with pytest.raises(Malformed, match="tag of a known one"):
        encode_tagged_fields({1: b"a"}, {1: b"b"})


@pytest.mark.parametrize(
    ("section", "reason"),
    [("05", "5 tagged fields do not fit"), ("01 00 05 61", "has 5 bytes, but only 1")],
)
def test_tagged_sections_that_do_not_fit(section: str, reason: str) -> None:
    data = bytes.fromhex(section)
    with pytest.raises(Malformed, match=reason):
        read_tagged_fields(data, 1, data[0], len(data))


def test_complaints() -> None:
    assert str(bad_length(-1, 5)).startswith("is null")
    assert str(bad_length(-2, 5)) == "has the negative length -2"
    assert str(bad_length(9, 5)) == "has 9 bytes, but only 5 are left"
    assert str(bad_count(-1, 5)).startswith("is null")
    assert str(bad_count(-9, 5)) == "has the negative count -9"
    assert str(bad_count(9, 5)) == "has 9 elements, which do not fit the 5 bytes left"


@pytest.mark.parametrize("count", [0, 1, 15, 16, 100])
def test_integer_readers(count: int) -> None:
    data = b"".join(value.to_bytes(4, "big") for value in range(count))
    assert IntegerReaders("i")[count](b"!" + data, 1) == tuple(range(count))


def test_run_packers_put_arrays_between_fixed_fields() -> None:
    packers = RunPackers(("h", "i", "B", "q", ""))
    assert packers[2 << 4 | 1](1, 10, 11, 3, 20) == bytes.fromhex(
        "0001" + "0000000a" + "0000000b" + "03" + "0000000000000014"
    )
    assert packers[0](1, 3) == b"\x00\x01\x03"


def test_run_packers_keep_a_bounded_number_of_formats() -> None:
    packers = RunPackers(("h", "i", "", "i", "", "i", "B"))
    for key in range(RunPackers.MAX_KEPT + 10):
        first, second, third = key >> 8, key >> 4 & 15, key & 15
        packed = packers[key](1, *range(first), *range(second), *range(third), 3)
        assert len(packed) == 3 + 4 * (first + second + third)
        assert len(packers) <= RunPackers.MAX_KEPT
