"""CRC-32C."""

import subprocess
import sys

from ottla.protocol.records.crc32c import crc32c


def test_known_values() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(bytearray(b"x123456789"))[1:]) == 0xE3069283


def test_loading_it_does_not_load_the_slow_package() -> None:
    """importlib.metadata, which the package asks for its own version, takes 40 ms to import."""
    program = (
        "import sys; before = set(sys.modules); import ottla.protocol.records.crc32c; "
        "assert ottla.protocol.records.crc32c.crc32c(b'123456789') == 0xE3069283; "
        "assert 'importlib.metadata' in before or 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_codecs_and_numpy_are_not_loaded_before_they_are_used() -> None:
    program = (
        "import sys; import ottla.protocol.records.reader, ottla.protocol.records.builder; "
        "import ottla.protocol.records.convert, ottla.protocol.records.validate; "
        "import ottla.protocol.records.columns; "
        "loaded = {'numpy', 'cramjam', 'lz4', 'lz4.frame', 'zstandard', 'dataclasses'}; "
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
