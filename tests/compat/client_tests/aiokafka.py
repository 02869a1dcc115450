"""aiokafka's tests, from a checkout of its repository: its distribution on PyPI is without them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.compat.client_tests.container_stand_in import start_stand_in
from tests.compat.client_tests.go_tests import CACHE
from tests.compat.client_tests.kafka_python import pattern_of_tests, read_report
from tests.compat.client_tests.model import Request, Suite, Unavailable
from tests.compat.ecosystem.environments import environment

VERSION = "0.14.0"
RUN_SECONDS = 2400.0
_REQUIREMENTS = (
    f"aiokafka[all]=={VERSION}",
    *("pytest==9.0.2", "pytest-asyncio==1.3.0", "pytest-mock==3.15.1"),
)


# The number of a test with random parameters, before the parameters of this run.
_RANDOM = re.compile(r"(/test_reassignment_with_random_subscriptions_and_changes\[\d+)-[^]]*\]")


def without_random_parameters(states: Mapping[str, str]) -> dict[str, str]:
    """The states of tests by a name that is the same in each run."""
    return {_RANDOM.sub(r"\1]", name): state for name, state in states.items()}


def _place() -> Path:
    """The checkout without its folder `aiokafka`, which would hide the installed package."""
    return CACHE / f"aiokafka-{VERSION}"


def _python() -> Path:
    return environment("client-tests/aiokafka", *_REQUIREMENTS)


def _prepare() -> None:
    if not (_place() / "tests" / "conftest.py").exists():
        raise Unavailable(
            f"its tests are not on PyPI: put tests, docker, gen-ssl-certs.sh and pyproject.toml of "
            f"its tag v{VERSION} into .cache/client-tests/{_place().name}"
        )
    _python()


def _run(request: Request) -> dict[str, str]:
    report = request.directory / "report.xml"
    with ExitStack() as stack:
        stand_in = stack.enter_context(start_stand_in(request.kind, request.directory))
        sink = stack.enter_context((request.directory / "tests.log").open("wb"))
        subprocess.run(
            [
                *(str(_python()), "-m", "pytest", "-p", "no:cacheprovider", "tests", "-q"),
                *(f"--junitxml={report}", "-o", "junit_family=xunit1"),
                *("--docker-image", "aiolibs/kafka:2.13_3.9.1", "--no-pull"),
                *(("-k", request.pattern) if request.pattern else ()),
            ],
            cwd=_place(),
            stdout=sink,
            stderr=sink,
            timeout=RUN_SECONDS,
            env={**os.environ, "PYTHONPATH": str(stand_in)},
        )
    return without_random_parameters(read_report(report))


SUITE = Suite(
    "aiokafka",
    "aiokafka",
    VERSION,
    ("java", "keytool", "ktutil", "mvn", "openssl", "unshare"),
    _prepare,
    _run,
    pattern_of_tests,
    "All its tests, those without a broker included, from a checkout of its repository. A stand-in "
    "for Docker starts the broker, with its settings, TLS, SASL and ACLs.",
    ("There is no KDC: `test_sasl_plaintext_gssapi` fails on both.",),
)
