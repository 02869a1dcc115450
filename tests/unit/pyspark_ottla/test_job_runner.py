"""The start of a job's file with the source registered in its sessions."""

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_ottla
from pyspark_ottla import job_runner


class FakeSession:
    pass


def test_a_file_that_a_cluster_has_moved_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert job_runner.find_file("/gone/job.py") == "/gone/job.py"
    (tmp_path / "job.py").touch()
    assert job_runner.find_file("/gone/job.py") == "job.py"


def test_every_session_knows_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [FakeSession(), FakeSession()]
    given = iter([sessions[0], sessions[0], sessions[1]])
    registered: list[object] = []
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: next(given))
    monkeypatch.setattr(pyspark_ottla, "register", registered.append)
    monkeypatch.setattr(sys, "argv", ["x"])
    monkeypatch.setattr(sys, "path", ["x", *sys.path[1:]])
    out = tmp_path / "out"
    (tmp_path / "job.py").write_text(
        "import sys\nfrom pyspark.sql import SparkSession\n"
        "for _ in range(3):\n    SparkSession.Builder().getOrCreate()\n"
        "from pathlib import Path\n"
        f"Path({str(out)!r}).write_text(__name__ + ' '.join(sys.argv[1:]) + sys.path[0])\n"
    )
    job_runner.main([str(tmp_path / "job.py"), "a", "b"])
    assert registered == sessions
    assert out.read_text() == f"__main__a b{tmp_path}"
