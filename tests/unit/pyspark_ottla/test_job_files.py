"""A pickled source brings the paths of the job's files to processes that Spark gives wrong ones."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.cloudpickle import dumps
from pyspark.core.files import SparkFiles

from ottla.cli.spark_package import write_package
from pyspark_ottla import DefaultSource
from pyspark_ottla.job_files import job_paths

OPTIONS = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}

READ = """
import json, pickle, sys
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
    assert job_paths() == files


def test_a_process_without_the_package_finds_it(files: list[str]) -> None:
    """As in Spark's process of a streaming source, where only pyspark is installed."""
    program = f"import sys; sys.path.append({str(Path(pyspark.__file__).parents[1])!r});" + READ
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        input=dumps(DefaultSource(OPTIONS)),
        capture_output=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=files[1],
    )
    assert done.returncode == 0, done.stderr
    file, options, columns = json.loads(done.stdout)
    assert file.startswith(files[0])
    assert (options, columns) == (OPTIONS, 7)


def test_outside_of_a_worker_a_source_is_pickled_as_any_object() -> None:
    assert job_paths() == []
    copy = pickle.loads(pickle.dumps(DefaultSource(OPTIONS)))
    assert (type(copy), copy.options) == (DefaultSource, OPTIONS)
