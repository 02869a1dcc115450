"""`ottla spark package`: the content of the zip; the same sources give the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from ottla.cli import spark_package
from ottla.cli.spark_package import package_files, write_package


def test_the_zip_holds_the_connector_and_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    write_package(tmp_path / "one.zip")
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert names == sorted(names) == list(package_files())
    assert {name.split("/")[0] for name in names} == {"ottla", "pyspark_ottla"}
    assert {name.split("/")[1] for name in names if name.startswith("ottla/")} == {
        "__init__.py",
        "protocol",
        "storage",
    }
    assert all(name.endswith(".py") for name in names)
    for name in ("ottla/protocol/messages/fetch.py", "pyspark_ottla/read/task.py"):
        assert name in names
    for name in ("ottla/protocol/generate.py", "ottla/protocol/client/aio_connection.py"):
        assert name not in names


def test_the_same_sources_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path / "one.zip")
    found = {name: tmp_path / "copy" / name for name in reversed(package_files())}
    for name, path in found.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(package_files()[name].read_bytes())
        path.chmod(0o600)
        os.utime(path, (1_500_000_000, 1_500_000_000))
    names = ("ottla", "ottla.protocol", "ottla.storage", "pyspark_ottla")
    folders = {name: tmp_path / "copy" / name.replace(".", "/") for name in names}
    monkeypatch.setattr(spark_package, "_folder_of", folders.__getitem__)
    write_package(tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_every_module_in_it_is_imported_from_the_zip(tmp_path: Path) -> None:
    """Without the codecs and without this tree on the path."""
    write_package(tmp_path / "pyspark_ottla.zip")
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in package_files()
    ]
    libraries = Path(pyspark.__file__).parents[1]
    program = (
        f"import sys; sys.path[:0] = ['pyspark_ottla.zip']; sys.path.append({str(libraries)!r})\n"
        "for name in ('cramjam', 'lz4', 'crc32c'): sys.modules[name] = None\n"
        "import importlib\n"
        f"for name in {modules!r}:\n"
        "    file = importlib.import_module(name).__file__\n"
        "    assert file.startswith('pyspark_ottla.zip') or '/pyspark_ottla.zip/' in file, file\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
