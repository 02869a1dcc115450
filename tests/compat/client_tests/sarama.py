"""Sarama's functional tests: five brokers, each behind a proxy that the tests cut and slow."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.compat.client_tests.docker_stand_in import stand_in
from tests.compat.client_tests.five_brokers import five_brokers
from tests.compat.client_tests.go_tests import (
    Package,
    compile_tests,
    install,
    module_directory,
    pattern_of,
    run_tests,
)
from tests.compat.client_tests.model import Request, Suite

MODULE, VERSION = "github.com/IBM/sarama", "v1.61.1"
PROXY, PROXY_VERSION = "github.com/Shopify/toxiproxy/v2/cmd/server", "v2.5.0"
PROXY_PORT = 8474
RUN_SECONDS = 2400.0


def _prepare() -> None:
    compile_tests(MODULE, VERSION, ("",), "functional")
    _proxy()


def _proxy() -> Path:
    return install(PROXY, PROXY_VERSION, "toxiproxy")


def functional_tests(directory: Path, pattern: str = "") -> list[str]:
    """The tests of the files functional_*_test.go that match; the others need no broker.

    They are read from the files: the test binary makes its topics before it lists its tests.
    """
    names: list[str] = []
    for path in sorted(directory.glob("functional_*_test.go")):
        names += re.findall(r"^func (Test\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    return [name for name in names if name != "TestMain" and re.search(pattern, name)]


@contextmanager
def _proxies(directory: Path) -> Iterator[None]:
    """Toxiproxy, which has no proxies yet."""
    with (directory / "toxiproxy.log").open("wb") as sink:
        command = [str(_proxy()), "-host", "127.0.0.1", "-port", str(PROXY_PORT)]
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _run(request: Request) -> dict[str, str]:
    with ExitStack() as stack:
        stack.enter_context(_proxies(request.directory))
        brokers = stack.enter_context(
            five_brokers(request.kind, request.directory, f"127.0.0.1:{PROXY_PORT}")
        )
        command = stack.enter_context(stand_in(request.directory, brokers.nodes))

        def restore() -> None:
            command.start_all()
            brokers.wait_until_complete()
            brokers.remove_topics()

        return run_tests(
            Package(MODULE, VERSION, ""),
            request.directory / "tests.log",
            names=functional_tests(module_directory(MODULE, VERSION), request.pattern),
            seconds=RUN_SECONDS,
            before=restore,
            variables={
                "KAFKA_VERSION": "3.9.1",
                "TOXIPROXY_ADDR": f"http://127.0.0.1:{PROXY_PORT}",
                "PATH": f"{command.place}{os.pathsep}{os.environ['PATH']}",
            },
        )


SUITE = Suite(
    "sarama",
    "Sarama",
    VERSION.removeprefix("v"),
    ("go", "java", "mvn", "unshare"),
    _prepare,
    _run,
    pattern_of,
    "Its functional tests, on five brokers behind Toxiproxy, which cuts and delays connections.",
    (
        "`TestJava...` and `TestFuncJavaInterop...` run Kafka's tools in a container: skipped.",
        "`TestFuncIdempotentBufferedSequence` fails at its end: it searches a broker's log for a "
        "Java exception by `docker compose logs`, which the stand-in for Docker does not have.",
    ),
)
