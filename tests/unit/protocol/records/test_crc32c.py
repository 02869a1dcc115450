"""CRC-32C."""

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records import crc32c_tables
from ottla.protocol.records.crc32c import crc32c


def test_known_values() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(bytearray(b"x123456789"))[1:]) == 0xE3069283
    for checksum in (crc32c, crc32c_tables.crc32c):
        assert checksum(b"6789", checksum(b"12345")) == 0xE3069283


def test_loading_it_does_not_load_the_slow_package() -> None:
    """importlib.metadata, which the package reads for its own version, takes 40 ms to import."""
    program = (
        "import sys; before = set(sys.modules); import ottla.protocol.records.crc32c; "
        "assert ottla.protocol.records.crc32c.crc32c(b'123456789') == 0xE3069283; "
        "assert 'importlib.metadata' in before or 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_codecs_and_numpy_are_not_loaded_before_they_are_used() -> None:
    program = (
        "import sys; import ottla.protocol.records.reader, ottla.protocol.records.builder; "
        "import ottla.protocol.records.convert; "
        "loaded = {'numpy', 'pyarrow', 'cramjam', 'lz4', 'lz4.frame', 'zstandard', 'dataclasses'}; "
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 900), st.integers(0, 3))
def test_tables_give_what_the_extension_gives(data: bytes, repeat: int, skip: int) -> None:
    whole = memoryview(bytearray(data * repeat))[skip:]
    assert crc32c_tables.crc32c(whole) == crc32c(whole)


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 65535, 65536, 65537, 70_000, 200_003])
@pytest.mark.parametrize("with_numpy", [True, False])
def test_tables_at_the_sizes_of_blocks(
    size: int, with_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_numpy:
        monkeypatch.setattr(crc32c_tables, "_numpy", lambda: None)
    data = random.Random(size).randbytes(size)
    assert crc32c_tables.crc32c(data) == crc32c(data)


def test_without_the_package_tables_are_used() -> None:
    program = (
        "import sys; sys.modules['crc32c'] = None; "
        "import ottla.protocol.records.crc32c as loaded; "
        "assert loaded.crc32c(b'123456789') == 0xE3069283; "
        "assert loaded.crc32c.__module__ == 'ottla.protocol.records.crc32c_tables'; "
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
