"""What is pickled finds the job's files where Spark gives a process a wrong directory for them."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyspark
import pytest
from pyspark.cloudpickle import dumps
from pyspark.core.files import SparkFiles
from pyspark.sql import SparkSession

from ottla.cli.spark_package import write_package
from pyspark_ottla import DefaultSource
from pyspark_ottla.connect import is_connect, session_source, source_of
from pyspark_ottla.job_files import find_job_files
from pyspark_ottla.options.options import parse_source_options
from pyspark_ottla.options.sink_options import parse_sink_options
from pyspark_ottla.read.reader import create_batch_reader
from pyspark_ottla.read.schema import row_schema
from pyspark_ottla.read.stream_reader_factory import create_stream_reader
from pyspark_ottla.write.stream_writer import StreamWriter
from pyspark_ottla.write.writer import BatchWriter

OPTIONS = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
SOURCE = parse_source_options(OPTIONS)
SCHEMA = row_schema(SOURCE)
SINK = parse_sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})

READ = """
import json, pickle, sys
from pyspark.core.files import SparkFiles
SparkFiles._is_running_on_worker, SparkFiles._root_directory = True, sys.argv[1]
source = pickle.load(sys.stdin.buffer)
module = sys.modules[type(source).__module__]
print(json.dumps([module.__file__, dict(source.options), len(source.schema().fields)]))
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of a worker whose job brought the connector and a module of its own."""
    root = tmp_path / "files"
    root.mkdir()
    write_package(root / "pyspark_ottla.zip")
    paths = [str(root / "pyspark_ottla.zip"), str(root)]
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True, raising=False)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(root))
    gone = [str(root / "gone.zip"), f"{root}-of-another"]
    monkeypatch.setattr(sys, "path", [sys.path[0], *paths, *gone, *sys.path[1:]])
    return paths


def test_only_paths_of_the_job_that_exist_are_carried(files: list[str]) -> None:
    assert find_job_files() == (files[1], ["pyspark_ottla.zip", ""])


@pytest.mark.parametrize("wrong", ["streaming_job", "..", "../another"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_process_without_the_package_finds_it(
    wrong: str, moved: bool, files: list[str], tmp_path: Path
) -> None:
    """Where only pyspark is installed; also on another host, where the directory is another."""
    pickled = dumps(DefaultSource(OPTIONS))
    root = Path(files[1])
    if moved:
        root = tmp_path / "host" / root.name
        root.parent.mkdir()
        Path(files[1]).rename(root)
        wrong = {"streaming_job": ".", "../another": "../another"}.get(wrong, wrong)
    program = f"import sys; sys.path.append({str(Path(pyspark.__file__).parents[1])!r});" + READ
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, os.path.normpath(root / wrong)],
        input=pickled,
        capture_output=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    file, options, columns = json.loads(done.stdout)
    assert file.startswith(str(root / "pyspark_ottla.zip"))
    assert (options, columns) == (OPTIONS, 7)


def test_readers_and_writers_are_restored_with_their_state(files: list[str]) -> None:
    for made in (
        create_batch_reader(SOURCE, SCHEMA),
        create_stream_reader(SOURCE, SCHEMA),
        BatchWriter(SINK, SCHEMA, overwrite=False),
        StreamWriter(SINK),
    ):
        copy = pickle.loads(dumps(made))
        assert (type(copy), vars(copy)) == (type(made), vars(made))


def test_what_python_knows_of_other_zips_is_kept(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read the directory of Spark's zip again takes 0.1 s, for each task."""
    pickled = dumps(BatchWriter(SINK, SCHEMA, overwrite=False))
    monkeypatch.setattr(importlib, "invalidate_caches", pytest.fail)
    pickle.loads(pickled)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in files])
    pickle.loads(pickled)
    assert sys.path[1:3] == files


def test_files_that_came_after_their_path_was_read_are_found(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled = dumps(DefaultSource(OPTIONS))
    caches = dict.fromkeys(files)
    monkeypatch.setattr(sys, "path_importer_cache", {**sys.path_importer_cache, **caches})
    pickle.loads(pickled)
    assert not set(files) & set(sys.path_importer_cache)


def test_outside_of_a_worker_a_source_is_pickled_as_any_object() -> None:
    assert find_job_files() is None
    copy = pickle.loads(pickle.dumps(DefaultSource(OPTIONS)))
    assert (type(copy), copy.options) == (DefaultSource, OPTIONS)


def test_a_class_of_a_session_finds_the_files_of_that_session(
    files: list[str], tmp_path: Path
) -> None:
    """In Spark Connect, in a process that has the directory above those of all sessions."""
    root = tmp_path / "sessions"
    for name, marker in (("one", "ottla_session_1.py"), ("two", "ottla_session_2.py")):
        shutil.copytree(files[1], root / name)
        (root / name / marker).touch()
        (root / name / "clean.py").write_text(f"SESSION = {name!r}\n")
    program = (
        f"import pickle, sys; sys.path.append({str(Path(pyspark.__file__).parents[1])!r})\n"
        "from pyspark.core.files import SparkFiles\n"
        "root = sys.argv[1]; sys.path[1:1] = [root + '/pyspark_ottla.zip', root]\n"
        "SparkFiles._is_running_on_worker, SparkFiles._root_directory = True, root\n"
        "source = pickle.load(sys.stdin.buffer)(options={'Subscribe': 't'})\n"
        "import clean, pyspark_ottla\n"
        "from pyspark_ottla.job_files import find_job_files\n"
        "assert type(source) is pyspark_ottla.DefaultSource\n"
        "print(clean.SESSION, pyspark_ottla.__file__, *find_job_files())\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, str(root)],
        input=dumps(source_of("ottla_session_2.py")),
        capture_output=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    two = root / "two"
    assert done.stdout.decode().split(" ", 3) == [
        "two",
        f"{two}/pyspark_ottla.zip/pyspark_ottla/__init__.py",
        str(two),
        "['pyspark_ottla.zip', '']\n",
    ]


def test_registration_adds_a_file_to_a_session_of_connect() -> None:
    added: list[str] = []
    session = SimpleNamespace(
        addArtifacts=lambda path, pyfile: added.append(Path(path).read_text())
    )
    made = session_source(cast(SparkSession, session))
    assert len(added) == 1
    assert made.name() == "ottla"
    assert type(made(OPTIONS)) is DefaultSource
    assert not is_connect(cast(SparkSession, session))
