"""CRC-32C (Castagnoli), the checksum of record batches since magic 2.

The hardware-backed C extension of the `crc32c` package does the work. Its package `__init__`
looks up its own version through `importlib.metadata`, which costs about 40 ms at start-up; the
extension is therefore loaded straight from its file, and the package is imported only where that
fails. Where it is not installed, as in most Python workers of Spark, tables do the work.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


def _load() -> Checksum:
    if "crc32c" not in sys.modules:
        package = PathFinder.find_spec("crc32c")
        locations = package.submodule_search_locations if package is not None else None
        extension = PathFinder.find_spec("crc32c._crc32c", locations) if locations else None
        if extension is not None and extension.loader is not None:
            try:
                module = module_from_spec(extension)
                extension.loader.exec_module(module)
                checksum: Checksum = module.crc32c
            except (ImportError, AttributeError):  # another build of the package: the plain way
                pass
            else:
                return checksum
    try:
        from crc32c import crc32c as packaged
    except ImportError:
        from ottla.protocol.records.crc32c_tables import crc32c as by_tables

        return by_tables
    return packaged


crc32c: Checksum = _load()
"""`crc32c(buffer) -> int`: the checksum of any bytes-like object, without copying it.

`crc32c(buffer, value)` continues `value`, the checksum of the bytes before."""
