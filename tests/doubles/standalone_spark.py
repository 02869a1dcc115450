"""A standalone cluster of Spark as processes: a master and two workers, on the loopback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from ottla.cli.zookeeper_server import free_port
from tests.doubles.eventually import eventually

WORKERS = 2
START_SECONDS = 180


@contextmanager
def standalone_cluster(
    work: Path,
    environment: Mapping[str, str],
    *,
    spark_home: Path | None = None,
    cores: int = 1,
    memory: str = "1g",
) -> Iterator[str]:
    """A master and two workers with that many cores and that memory each; the address of the
    master. Without `spark_home` the Spark of this Python."""
    home = spark_home if spark_home is not None else Path(pyspark.__file__).parent
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    worker = ["worker.Worker", "--host", host, "--cores", str(cores), "--memory", memory]
    daemons = {"master": ["master.Master", "--host", host, "--port", port, "--webui-port", "0"]}
    for number in range(WORKERS):
        name = f"worker-{number}"
        more = ["--webui-port", "0", "--work-dir", str(work / name), f"spark://{address}"]
        daemons[name] = [*worker, *more]
    with ExitStack() as stack:
        for name, arguments in daemons.items():
            log = work / f"{name}.log"
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{arguments[0]}",
                    *arguments[1:],
                ],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**environment, "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"},
            )
            stack.callback(process.wait, 60)
            stack.callback(process.kill)
            wait_for(
                "I have been elected leader" if name == "master" else "registered with master", log
            )
        yield f"spark://{address}"


def wait_for(pattern: str, log: Path) -> None:
    def text() -> str:
        return log.read_text(errors="replace")

    eventually(lambda: re.search(pattern, text()), text, seconds=START_SECONDS)
