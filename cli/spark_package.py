"""The zip with which the Spark connector travels with a job: what is in it, and how it is written.

Spark puts such a zip on the path of every Python process of a job (`--py-files`,
`spark.submit.pyFiles`, `SparkContext.addPyFile`, `addArtifacts(pyfile=True)`). It holds Python
source alone, runs on Python 3.10, and needs pyarrow and numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

# What of `ottla.protocol` the connector never imports: the generator, which works in a checkout
# alone, and the asyncio client.
LEFT_OUT = ("client/aio_connection.py", "generate.py")
# What reads tiered segments from their store; all of `storage/remote` is added.
TIERED = (
    "__init__.py",
    "errors.py",
    "files/__init__.py",
    "files/fs.py",
    "files/layout.py",
    "files/open_files.py",
    "producer/__init__.py",
    "producer/producer_entry.py",
    "producer/producer_snapshot.py",
)
# The oldest date that a zip can hold. Every file has it, so that the same sources give the same
# bytes.
DATE = (1980, 1, 1, 0, 0, 0)
MODE = 0o644
ON_UNIX = 3


class NoConnectorError(Exception):
    """The package `pyspark_ottla` is not installed beside `ottla`."""


def package_files() -> dict[str, Path]:
    """Every file of the zip by its name in there, in the order of the names."""
    storage = _folder_of("ottla.storage")
    files = {"ottla/__init__.py": _folder_of("ottla") / "__init__.py"}
    for name, path in _sources(_folder_of("ottla.protocol")):
        if name not in LEFT_OUT:
            files[f"ottla/protocol/{name}"] = path
    for name in TIERED:
        files[f"ottla/storage/{name}"] = storage / name
    for name, path in _sources(storage / "remote"):
        files[f"ottla/storage/remote/{name}"] = path
    for name, path in _sources(_folder_of("pyspark_ottla")):
        files[f"pyspark_ottla/{name}"] = path
    return dict(sorted(files.items()))


def write_package(output: Path) -> int:
    """Writes the zip, whole or not at all; returns its size in bytes. Raises OSError."""
    unfinished = output.with_name(f"{output.name}.partial")
    try:
        with ZipFile(unfinished, "w") as archive:
            for name, path in package_files().items():
                entry = ZipInfo(name, DATE)
                entry.compress_type = ZIP_DEFLATED
                entry.create_system = ON_UNIX
                entry.external_attr = MODE << 16
                archive.writestr(entry, path.read_bytes())
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    return output.stat().st_size


def _folder_of(package: str) -> Path:
    """The folder of an installed package, without importing it: `pyspark_ottla` needs pyspark."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise NoConnectorError(
            f"the package {package} is not installed here: install ottla again, or run the command "
            "in a checkout"
        )
    return Path(spec.origin).parent


def _sources(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*.py"):
        yield path.relative_to(folder).as_posix(), path
