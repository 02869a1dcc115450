"""kafka-go's own tests."""

from __future__ import annotations

from tests.compat.client_tests.brokers import LOGINS, single_broker
from tests.compat.client_tests.go_tests import Package, compile_tests, pattern_of, run_tests
from tests.compat.client_tests.model import Request, Suite

MODULE, VERSION = "github.com/segmentio/kafka-go", "v0.4.51"
PACKAGES = ("", "sasl", "topics")
RUN_SECONDS = 2400.0
# Their own CI sets it: tests of net.Conn which a Kafka topic cannot pass.
VARIABLES = {"KAFKA_VERSION": "3.9.1", "KAFKA_SKIP_NETTEST": "1"}


def _prepare() -> None:
    compile_tests(MODULE, VERSION, PACKAGES)


def _run(request: Request) -> dict[str, str]:
    states: dict[str, str] = {}
    with single_broker(request.kind, request.directory, LOGINS):
        for path in PACKAGES:
            package = Package(MODULE, VERSION, path)
            states |= run_tests(
                package,
                request.directory / f"tests-{path or 'root'}.log",
                names=package.names(request.pattern, VARIABLES),
                seconds=RUN_SECONDS,
                variables=VARIABLES,
            )
    return states


SUITE = Suite(
    "kafka_go",
    "kafka-go",
    VERSION.removeprefix("v"),
    ("go", "java", "mvn", "unshare"),
    _prepare,
    _run,
    pattern_of,
    "All tests of its packages `kafka`, `sasl` and `topics`, those without a broker included.",
    (
        "`TestReaderConsumerGroup` panics in its helper `getOffsets`, on Kafka, too; tests that "
        "run at the same time fail with it.",
    ),
)
