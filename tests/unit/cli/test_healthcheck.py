"""The options of `ottla healthcheck`, and its defaults."""

from __future__ import annotations

import pytest

from ottla.broker.observability.faults import controller_fault
from ottla.cli.health import Unhealthy
from ottla.cli.healthcheck import check_metadata, default_address, main, parse
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, "127.0.0.1:9092"),
        ({"OTTLA_BOOTSTRAP": "b:1"}, "b:1"),
        ({"KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9999"}, "127.0.0.1:9999"),
        ({"KAFKA_LISTENERS": "SSL://:9093,INTERNAL://broker:9094"}, "broker:9094"),
        ({"KAFKA_LISTENERS": "SASL_SSL://:9093"}, "127.0.0.1:9092"),
        ({"OTTLA_LISTENERS": "PLAINTEXT://[::]:9095"}, "127.0.0.1:9095"),
        (
            {
                "KAFKA_LISTENERS": "CLIENTS://:9093,INTERNAL://broker:9094",
                "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENTS:SASL_SSL,INTERNAL:PLAINTEXT",
            },
            "broker:9094",
        ),
        ({"KAFKA_CFG_LISTENERS": "PLAINTEXT://:9096"}, "127.0.0.1:9096"),
        (
            {
                "OTTLA_IMAGE_LISTENERS": "PLAINTEXT://0.0.0.0:9092",
                "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:19092",
            },
            "127.0.0.1:19092",
        ),
        # The image sets the first one; the broker obeys the second one.
        (
            {
                "OTTLA_IMAGE_LISTENERS": "PLAINTEXT://0.0.0.0:9092",
                "OTTLA_LISTENERS": "PLAINTEXT://0.0.0.0:9095",
            },
            "127.0.0.1:9095",
        ),
    ],
)
def test_default_address(environment: dict[str, str], address: str) -> None:
    assert default_address(environment) == address


def test_parse() -> None:
    assert parse(["-b", "x:1", "--timeout=2", "--json"]) == {
        "bootstrap": "x:1",
        "timeout": "2",
        "json": "yes",
    }
    times = [["--timeout", text] for text in ("0", "x", "nan", "inf", "1e10")]
    for wrong in (["--bootstrap"], ["extra"], ["--no"], *times):
        with pytest.raises(ValueError, match=r"healthcheck has no|--"):
            parse(wrong)


def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no"], {}) == 2
    assert capsys.readouterr().err == (
        "ottla: healthcheck has no option --no; see `ottla healthcheck --help`.\n"
    )
    assert main(["-b", "nonsense"], {}) == 2
    # What cannot be a name.
    assert main(["-b", "a..b:9092"], {}) == 2
    assert main(["--http", "a..b:9404"], {}) == 2
    assert main([], {"KAFKA_LISTENERS": "SASL_SSL://a..b:9093"}) == 2


def test_check_metadata() -> None:
    broker = MetadataResponseBroker(node_id=1, host="h", port=1)
    healthy = check_metadata(
        "a", MetadataResponse(brokers=[broker], controller_id=1, cluster_id="c")
    )
    assert healthy["healthy"] is True
    with pytest.raises(Unhealthy, match="has no metadata yet") as starting:
        check_metadata("a", MetadataResponse(controller_id=-1))
    assert starting.value.code == 1
    warned = check_metadata("a", MetadataResponse(brokers=[broker], controller_id=-1))
    assert warned["healthy"] is True
    assert warned["warnings"] == [controller_fault().problem]
