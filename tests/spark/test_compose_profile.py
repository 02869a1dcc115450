"""The compose profile `spark` without Docker: names, files and options fit together.

`make compat-spark-package` runs the command of its job on a standalone cluster.
"""

from __future__ import annotations

import yaml

from tests.spark.compose_profile import job_command, services
from tests.spark.conftest import ROOT
from tests.spark.test_examples import example


def test_the_master_two_workers_and_the_job_are_of_one_cluster() -> None:
    found = {name: each for name, each in services().items() if "spark" in each.get("profiles", [])}
    assert set(found) == {
        "spark-package",
        "spark-master",
        "spark-worker1",
        "spark-worker2",
        "spark-job",
    }
    master = "spark://spark-master:7077"
    for name in ("spark-worker1", "spark-worker2"):
        assert found[name]["command"][-1] == master
    assert found["spark-master"]["command"][-2:] == ["--host", "spark-master"]
    job = job_command()
    assert job[job.index("--master") + 1] == master
    package = found["spark-package"]["entrypoint"]
    assert job[job.index("--py-files") + 1] == package[package.index("--output") + 1]


def test_volumes_and_files_exist() -> None:
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name, each in services().items():
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            there = (
                (ROOT / source).exists()
                if source.startswith("./")
                else source in document["volumes"]
            )
            assert there, f"{name}: {volume}"
    assert (ROOT / services()["spark-job"]["build"] / "Dockerfile").exists()
    assert (ROOT / "examples" / "word_count_stream.py").exists()


def test_the_job_takes_its_options_and_names_the_brokers_that_containers_reach() -> None:
    command = job_command()
    options = command[command.index("/examples/word_count_stream.py") + 1 :]
    parsed = example("word_count_stream").parse(options)
    reached = []
    for name in ("broker1", "broker2", "broker3"):
        listeners = services()[name]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
        reached += [text.removeprefix("COMPOSE://") for text in listeners.split(",")[1:]]
    assert parsed.bootstrap.split(",") == reached
    assert (parsed.lines, parsed.counts) == ("lines", "counts")
