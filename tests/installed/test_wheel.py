"""What is built: the same files by every way, two names, and nothing that a user has no use for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from ottla import __version__
from ottla.broker.server import broker_server
from ottla.cli.zookeeper_server import free_port
from tests.installed.builds import (
    ROOT,
    build,
    clean_environment,
    complaints,
    copy_checkout,
    copy_docker_context,
    files_of,
    is_docker_ignored,
    must_run,
    unpack_sdist,
)
from tests.installed.conftest import Installed, install, new_environment
from tests.installed.wheel_files import COMMAND, LIST, patterns
from tests.tidy.source_tree import OTTLA_FOLDERS


def test_the_wheel_holds_what_the_list_allows(wheel: Path) -> None:
    allowed = LIST.read_text().split()
    found = patterns(files_of(wheel))
    assert found == allowed, f"if this is intended, run `{COMMAND}` and commit {LIST.name}"


def test_the_list_names_two_packages() -> None:
    allowed = LIST.read_text().split()
    assert {line.split("/")[0] for line in allowed} == {"ottla", "ottla.dist-info", "pyspark_ottla"}
    assert not [line for line in allowed if "definitions" in line or "test_" in line]


def test_no_module_is_missing_from_the_wheel(wheel: Path) -> None:
    """A folder without `__init__.py` would be."""
    modules = {
        prefix + path.relative_to(ROOT).as_posix()
        for prefix, folders in (("ottla/", OTTLA_FOLDERS), ("", ("ottla", "pyspark_ottla")))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }
    assert modules == {name for name in files_of(wheel) if name.endswith(".py")}


def test_an_sdist_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(copy_checkout(tmp_path / "source"), "sdist", tmp_path / "sdist")
    unpacked = unpack_sdist(sdist, tmp_path / "unpacked")
    assert not [path for path in unpacked.rglob("*") if path.is_symlink()]
    for needed in ("Makefile", "tests/unit", "docs/README.md", "tools/run_tests.py"):
        assert (unpacked / needed).exists(), "a distributor runs the tests of an sdist"
    again = build(unpacked, "wheel", tmp_path / "wheel")
    assert files_of(again) == files_of(wheel)


def test_the_image_gets_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = copy_docker_context(tmp_path / "source")
    assert not (source / "protocol" / "definitions").exists()
    command = ("wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist", ".")
    said = must_run(sys.executable, "-m", "pip", *command, cwd=source)
    assert not complaints(said)
    [built] = (tmp_path / "dist").glob("*.whl")
    assert files_of(built) == files_of(wheel)


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("broker/server/broker_server.py", False),
        ("ottla/testing.py", False),
        (".typecheck/ottla", True),
        ("setup.py", False),
        ("broker/__pycache__", True),
        ("protocol/definitions/fetch.txt", True),
        ("protocol/records/varint.so", True),
        ("tests/unit", True),
        (".git", True),
        (".venv/lib", True),
    ],
)
def test_the_docker_context_is_small(path: str, ignored: bool) -> None:
    assert is_docker_ignored(path, (ROOT / ".dockerignore").read_text().split()) is ignored


def test_an_editable_install_imports_the_checkout(tmp_path: Path) -> None:
    source = copy_checkout(tmp_path / "source")
    environment = new_environment(tmp_path / "environment")
    install(environment, "-e", source)
    code = (
        "import ottla.broker.server, ottla.cli.main, ottla.testing, pyspark_ottla, importlib.util\n"
        "print(ottla.__file__, importlib.util.find_spec('broker'))"
    )
    said = must_run(environment.python, "-c", code, cwd=tmp_path)
    assert said.split() == [str(source / "ottla" / "__init__.py"), "None"]


def test_what_an_index_shows(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Name"] == "ottla"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Author"] == "The Ottla authors"
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)}
    assert versions <= set(metadata.get_all("Classifier", []))
    # Relative paths, so that a checkout and an archive show their own pictures. An index shows the
    # texts in their place.
    lines = str(metadata.get_payload()).splitlines()
    pictures = [line.partition("](")[2].rstrip(")") for line in lines if line.startswith("![")]
    assert pictures
    assert all((ROOT / path).is_file() for path in pictures)


def test_the_version_is_in_one_place(installed: Installed) -> None:
    code = "import importlib.metadata, ottla; print(importlib.metadata.version('ottla'))"
    assert must_run(installed.python, "-c", code, cwd=installed.folder).split() == [__version__]
    said = must_run(installed.folder / "bin" / "ottla", "--version", cwd=installed.folder)
    assert __version__ in said


def test_an_archive_without_links_installs(wheel: Path, tmp_path: Path) -> None:
    """Such as one that was unpacked on Windows, or by Python's zipfile."""
    source = copy_checkout(tmp_path / "source")
    for path in [path for path in source.rglob("*") if path.is_symlink()]:
        target = os.readlink(path)
        path.unlink()
        path.write_text(target)
    assert files_of(build(source, "wheel", tmp_path / "wheel")) == files_of(wheel)
    code = "import ottla.broker.server.broker_server as module; print(module.__file__)"
    said = must_run(sys.executable, "-c", code, cwd=source)
    assert said.split() == [str(source / "broker" / "server" / "broker_server.py")]


def test_paths_of_tracebacks_are_those_of_the_repository() -> None:
    """So that `git blame` takes them."""
    assert Path(broker_server.__file__) == ROOT / "broker" / "server" / "broker_server.py"


def test_a_local_cluster_needs_nothing_else(installed: Installed, tmp_path: Path) -> None:
    """Neither Java nor a command of the system; SIGINT stops it as a script's background job."""
    port = free_port()
    process = subprocess.Popen(
        [
            *("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"),
            *(installed.folder / "bin" / "ottla", "cluster", "start", "--brokers", "1"),
            *("--directory", tmp_path / "cluster", "--port", str(port)),
        ],
        env={**clean_environment(), "PATH": os.devnull},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (first, errors) == (
        f"1 broker(s) started: 127.0.0.1:{port}\n",
        "The cluster is stopped.\n",
    )
    assert process.returncode == 0
