"""The connector goes with a job as one zip: `ottla spark package` and `spark-submit --py-files`."""

from __future__ import annotations

from pathlib import Path

from tests.doubles.broker_process import BrokerProcess
from tests.spark.shipping import (
    HERE,
    bare_python,
    check_found,
    check_written,
    prepare_topics,
    submit,
    write_zip,
)


def test_py_files_bring_the_connector_to_a_python_without_it(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Batch, transform, streams and writes in every codec, without cramjam, lz4 and crc32c."""
    archive = write_zip(tmp_path / "pyspark_ottla.zip")
    prepare_topics(broker.bootstrap)
    files = f"{archive},{HERE / 'shipped_transform.py'}"
    python = bare_python(tmp_path / "environment")
    found = submit(python, tmp_path, ["--py-files", files], [broker.bootstrap])
    assert found["present in a worker"] == []
    check_found(found, archive)
    check_written(broker.bootstrap)
