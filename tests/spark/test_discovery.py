"""The wheel finds its way into Spark: by search, and by `register` if another module is broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.doubles.broker_process import BrokerProcess
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.support import Sent, create_topic, write
from tests.tidy.source_tree import OTTLA_FOLDERS

PACKAGES = ("ottla", *OTTLA_FOLDERS, "pyspark_ottla")

SCRIPT = """
import json, sys
from pathlib import Path

def main(bootstrap, topic, work):
    sys.path.remove({root!r}) if {root!r} in sys.path else None
    import pyspark_ottla
    from pyspark.sql import SparkSession
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.warehouse.dir", work)
        .config("spark.driver.extraJavaOptions",
                "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -Djava.io.tmpdir=" + work)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")

    def count():
        reader = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).load().count()

    result = {{"file": pyspark_ottla.__file__}}
    try:
        result["found"] = count()
    except Exception as error:
        result["found"] = str(error)
    pyspark_ottla.register(spark)
    result["registered"] = count()
    print(json.dumps(result))
    spark.stop()

main(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def unpacked_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy (a build leaves files behind) and unpacked, which is
    all that installing does to a wheel of Python alone."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source / name)
    build = (
        f"from setuptools.build_meta import build_wheel; build_wheel({str(directory / 'dist')!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [wheel] = (directory / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "unpacked")
    return directory / "unpacked"


def test_the_import_touches_nothing_but_pyspark(unpacked_wheel: Path) -> None:
    """A failing import of any `pyspark_*` module would hide all data sources from Spark."""
    code = (
        "import sys, json, pyspark_ottla; "
        "print(json.dumps([pyspark_ottla.__file__, *sorted(sys.modules)]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(unpacked_wheel)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=unpacked_wheel.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    file, *modules = json.loads(done.stdout)
    assert file.startswith(str(unpacked_wheel))
    roots = {name.partition(".")[0] for name in modules}
    assert roots.isdisjoint({"protocol", "pyarrow", "numpy", "pandas", "crc32c", "cramjam", "lz4"})


def count_in_a_process(
    python: Path | str, broker: BrokerProcess, topic: str, work: Path, paths: list[Path]
) -> dict[str, Any]:
    """What SCRIPT finds in a topic of two records, first without and then with `register`."""
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, [Sent(b"1"), Sent(b"2")])
    environment = {**os.environ, **spark_environment(work), "PYSPARK_PYTHON": str(python)}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    done = subprocess.run(
        [str(python), "-c", SCRIPT.format(root=str(ROOT)), broker.bootstrap, topic, str(work)],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def test_a_clean_environment_finds_the_wheel_by_itself(
    unpacked_wheel: Path, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Nothing of this tree is on its path: the wheel, and the libraries it needs."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    [site] = environment.glob("lib/python*/site-packages")
    shutil.copytree(unpacked_wheel, site, dirs_exist_ok=True)
    libraries = Path(pyspark.__file__).parents[1]
    # Such a line adds the directory alone, not what .pth files in there (of this tree) would add.
    (site / "libraries.pth").write_text(f"{libraries}\n", encoding="utf-8")
    python = environment / "bin" / "python"
    result = count_in_a_process(python, broker, "found-by-itself", tmp_path, [])
    assert result["file"].startswith(str(site))
    assert result["found"] == 2


def test_register_works_beside_a_broken_module(
    unpacked_wheel: Path, broker: BrokerProcess, tmp_path: Path
) -> None:
    broken_modules = tmp_path / "broken_modules"
    broken_modules.mkdir()
    (broken_modules / "pyspark_broken.py").write_text("raise RuntimeError('broken')\n")
    paths = [unpacked_wheel, broken_modules]
    result = count_in_a_process(sys.executable, broker, "found-by-wheel", tmp_path, paths)
    assert result["file"].startswith(str(unpacked_wheel))
    assert "DATA_SOURCE_NOT_FOUND" in str(result["found"])
    assert result["registered"] == 2
