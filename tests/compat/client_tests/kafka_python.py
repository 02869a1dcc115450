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
from tests.compat.client_tests.kafka_python_brokers import KIND, install
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

# These start their own brokers, and only where no address of a broker is given.
_SECURED = tuple(f"test/integration/test_{name}_integration.py" for name in ("sasl", "ssl"))


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
    install(place)
    (place / "test" / "__init__.py").touch()  # or `test` is the package of Python's own tests


def _run(request: Request) -> dict[str, str]:
    others = [word for path in _SECURED for word in ("--ignore", path)]
    with single_broker(request.kind, request.directory, SETTINGS):
        states = _run_tests(
            request, "plain", "test/integration", *others, KAFKA_URI="kafka://localhost:9092"
        )
    return {**states, **_run_tests(request, "secured", *_SECURED)}


def _run_tests(request: Request, name: str, *arguments: str, **variables: str) -> dict[str, str]:
    report = request.directory / f"report-{name}.xml"
    with (request.directory / f"tests-{name}.log").open("wb") as sink:
        subprocess.run(
            [
                *(str(_python()), "-m", "pytest", "-p", "no:cacheprovider", *arguments),
                *("-q", f"--junitxml={report}", "-o", "junit_family=xunit1"),
                *(("-k", request.pattern) if request.pattern else ()),
            ],
            cwd=_place(),
            stdout=sink,
            stderr=sink,
            timeout=RUN_SECONDS,
            env={
                **{each: text for each, text in os.environ.items() if each != "PYTHONPATH"},
                "KAFKA_VERSION": "3.9.1",
                "KAFKA_ROOT": str(_place()),
                KIND: request.kind,
                **variables,
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
    ("java", "keytool", "mvn", "openssl", "unshare"),
    _prepare,
    _run,
    pattern_of_tests,
    "Its integration tests. Those of SASL and TLS start a ZooKeeper and brokers of their own, with "
    "templates and scripts in place of those that its source distribution lacks.",
    ("`test_group` requests a session timeout of 3 s: both brokers are set to allow it.",),
)
