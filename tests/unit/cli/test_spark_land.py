"""What `ottla spark land` hands to its job, and what it refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import spark
from ottla.cli.main import main
from ottla.cli.spark_land import SCHEMA_BYTES_MAX
from ottla.cli.spark_submit import Submission
from pyspark_ottla.land.plan import LandOptions


class Submitted:
    submission: Submission
    options: LandOptions
    arguments: list[Any]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    found = Submitted()

    def submit(
        submission: Submission, module: str, file: Path | None, content: str, arguments: Any
    ) -> int:
        found.submission = submission
        found.arguments = [module, file, *arguments]
        if content:
            found.options = LandOptions.from_json(content)
        return 0

    monkeypatch.setattr(spark, "submit", submit)
    return found


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ottla", "spark", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def test_options_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: Submitted
) -> None:
    (tmp_path / "client").write_text("security.protocol=SSL\n")
    (tmp_path / "schema").write_text('"string"')
    code = run(
        monkeypatch, "land", "orders", "--to", "/data", "--format", "iceberg", "--partition-by",
        "date,topic", "--partition-by", "hour", "--available-now", "--decode", "avro", "--schema",
        str(tmp_path / "schema"), "--bad-records", "keep", "--bootstrap", "h:1",
        "--command-config", str(tmp_path / "client"), "--max-batch-mib", "2", "--option",
        "value.framing=confluent", "--conf", "a=b",
    )  # fmt: skip
    assert code == 0
    assert submitted.arguments == ["land.job", None]
    assert submitted.options == LandOptions(
        topics=("orders",),
        to="/data",
        format="iceberg",
        partition_by=("date", "topic", "hour"),
        available_now=True,
        bad_records="keep",
        batch_bytes_max=2 << 20,
        source={
            "kafka.bootstrap.servers": "h:1",
            "kafka.security.protocol": "SSL",
            "value.format": "avro",
            "key.format": "raw",
            "value.schema": '"string"',
            "value.framing": "confluent",
        },
    )
    assert submitted.submission.tables == ("iceberg",)
    assert ("spark.sql.catalog.ottla_tables.warehouse", "/data") in submitted.submission.settings
    assert submitted.submission.settings[-1] == ("a", "b")
    # Of dates and hours to partition by.
    assert dict(submitted.submission.settings)["spark.sql.session.timeZone"] == "UTC"


def test_a_descriptor_set_goes_in_base64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: Submitted
) -> None:
    (tmp_path / "set").write_bytes(b"\x0a\x00\xff")
    arguments = ["land", "t", "--to", "x", "--decode", "protobuf", "--schema"]
    assert run(monkeypatch, *arguments, str(tmp_path / "set")) == 0
    assert submitted.options.source["value.schema"] == "CgD/"


def test_a_job_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: Submitted
) -> None:
    (tmp_path / "job.py").touch()
    job = str(tmp_path / "job.py")
    assert run(monkeypatch, "run", "--with", "delta", "--master", "m", job, "--x", "y") == 0
    assert submitted.arguments == ["job_runner", tmp_path / "job.py", "--x", "y"]
    assert submitted.submission == Submission(master="m", tables=("delta",))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("land t --to x --format orc", "--format orc: it can be parquet, iceberg, delta"),
        ("land t --to x --decode xml", "--decode xml: it can be raw, string, json, avro, protobuf"),
        ("land t --to x --bad-records skip", "--bad-records skip: it can be fail, drop, keep"),
        ("land a/b --to x", "'a/b' is not the name of a topic"),
        ("land t t --to x", "a topic is named twice"),
        ("land _checkpoints --to x/", "would be x/_checkpoints, where the checkpoints are; set"),
        ("land t --to x --checkpoint x/t/c", "would be x/t, where the checkpoints are; set"),
        ("land t u --to x --decode avro --schema s", "--schema is for one topic"),
        ("land t --to x --schema s", "--schema is set, but --decode is raw"),
        ("land t --to x --decode avro --schema none", "cannot read the schema none: No such file"),
        ("land t --to x --decode avro --schema large", "is larger than a schema can be"),
        ("land t --to x --option a", "--option 'a' is not name=value"),
        ("land t --to x --deploy-mode far", "--deploy-mode far: it can be client or cluster"),
        ("run none.py", "there is no file none.py"),
        ("run --with hudi large", "--with hudi: it can be delta or iceberg"),
    ],
)
def test_mistakes(
    arguments: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    submitted: Submitted,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large").write_bytes(b"x" * (SCHEMA_BYTES_MAX + 1))
    assert run(monkeypatch, *arguments.split()) in (1, 2)
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("ottla: ")
    assert len(error.splitlines()) == 1
    assert not hasattr(submitted, "options")


def test_json_is_what_the_job_reads(monkeypatch: pytest.MonkeyPatch, submitted: Submitted) -> None:
    assert run(monkeypatch, "land", "a", "b", "--to", "x") == 0
    assert submitted.options.topics == ("a", "b")
    assert json.loads(json.dumps(submitted.options.source))["value.format"] == "raw"
