"""kafka-python's integration tests, from its source distribution on PyPI."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.compat.client_tests.brokers import PLAIN, single_broker
from tests.compat.client_tests.go_tests import CACHE
from tests.compat.client_tests.model import FAILED, PASSED, SKIPPED, Request, Suite
from tests.compat.ecosystem.environments import environment

VERSION = "3.0.12"
SETTINGS: dict[str, object] = {
    **PLAIN,
    "num.partitions": 4,
    # As its own brokers have it: a test requests 3 s, and brokers reject less than 6 s by default.
    "group.min.session.timeout.ms": 1_000,
}
RUN_SECONDS = 2400.0
_REQUIREMENTS = ("pytest", "pytest-mock", "pytest-timeout", "py", "lz4", "zstandard", "crc32c")

# The distribution is without test/service.py, which starts brokers. The broker is there already.
_SERVICE = '''"""In place of the module that the source distribution lacks."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("the broker of these tests is there already")
'''


def _place() -> Path:
    return CACHE / f"kafka_python-{VERSION}"


def _python() -> Path:
    return environment("client-tests/python", *_REQUIREMENTS)


def _prepare() -> None:
    python, place = _python(), _place()
    if not place.exists():
        command = [str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        done = subprocess.run(
            [*command, "-d", str(CACHE), f"kafka-python=={VERSION}"],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        with tarfile.open(CACHE / f"kafka_python-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    (place / "test" / "service.py").write_text(_SERVICE)
    (place / "test" / "__init__.py").touch()  # or `test` is the package of Python's own tests


def _run(request: Request) -> dict[str, str]:
    report = request.directory / "report.xml"
    with (
        single_broker(request.kind, request.directory, SETTINGS),
        (request.directory / "tests.log").open("wb") as sink,
    ):
        subprocess.run(
            [
                *(str(_python()), "-m", "pytest", "-p", "no:cacheprovider", "test/integration"),
                *("-q", f"--junitxml={report}", "-o", "junit_family=xunit1"),
                *(("-k", request.pattern) if request.pattern else ()),
            ],
            cwd=_place(),
            stdout=sink,
            stderr=sink,
            timeout=RUN_SECONDS,
            env={
                **{name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
                "KAFKA_URI": "kafka://localhost:9092",
                "KAFKA_VERSION": "3.9.1",
                "KAFKA_ROOT": str(_place()),  # Kafka's scripts, which no test here runs
            },
        )
    return read_report(report)


def pattern_of_tests(names: Sequence[str]) -> str:
    """A pattern for `pytest -k` of these names of a report."""
    tests = {name.partition("/")[2].partition("[")[0] for name in names}
    return " or ".join(sorted(tests))


def read_report(path: Path) -> dict[str, str]:
    """The states in a JUnit report, by `FILE/TEST`."""
    states = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        kinds = {each.tag for each in case}
        failed, skipped = kinds & {"failure", "error"}, "skipped" in kinds
        file = case.get("classname", "").split(".")[-1]
        name = f"{file}/{case.get('name')}"
        states[name] = FAILED if failed else SKIPPED if skipped else PASSED
    return states


SUITE = Suite(
    "kafka_python",
    "kafka-python",
    VERSION,
    ("java", "mvn", "unshare"),
    _prepare,
    _run,
    pattern_of_tests,
    "Its integration tests. Those of SASL and TLS start a broker of their own with files that its "
    "source distribution lacks: they are skipped, or fail at their start.",
    ("`test_group` requests a session timeout of 3 s: both brokers are set to allow it.",),
)
