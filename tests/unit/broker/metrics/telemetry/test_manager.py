from __future__ import annotations

import pytest

from ottla.broker.metrics.telemetry import manager as module
from ottla.broker.metrics.telemetry.manager import ClientMetricsManager, parse_subscription
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.uuids import ZERO_UUID, random_uuid, uuid_to_string

CLIENT = {"client_id": "app-1", "client_software_name": "apache-kafka-java"}


class Time:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def forgotten() -> list[bytes]:
    """The ids of clients that are no longer kept."""
    return []


@pytest.fixture
def manager(time: Time, forgotten: list[bytes]) -> ClientMetricsManager:
    return ClientMetricsManager(1000, time, forgotten.append)


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> int:
    return error.value.code


def test_a_new_client_gets_an_id_and_nothing_to_push(manager: ClientMetricsManager) -> None:
    instance = manager.ask(ZERO_UUID, CLIENT)
    assert instance.instance_id != ZERO_UUID
    assert (instance.metrics, instance.interval_ms) == ([], 300_000)


def test_the_subscriptions_that_fit_are_put_together(manager: ClientMetricsManager) -> None:
    manager.update("java", {"metrics": "b,a", "match": "client_software_name=.*java"})
    manager.update("fast", {"metrics": "a,c", "interval.ms": "100", "match": "client_id=app-\\d"})
    manager.update("other", {"metrics": "*", "match": "client_id=app"})  # all of it has to match
    instance = manager.ask(ZERO_UUID, CLIENT)
    assert (instance.metrics, instance.interval_ms) == (["a", "b", "c"], 100)
    manager.update("everything", {"metrics": "*"})
    assert manager.ask(instance.instance_id, CLIENT).metrics == ["*"]


def test_one_client_can_be_asked_by_its_id(manager: ClientMetricsManager) -> None:
    one, other = random_uuid(), random_uuid()
    manager.update("one", {"metrics": "x", "match": f"client_instance_id={uuid_to_string(one)}"})
    assert manager.ask(one, CLIENT).metrics == ["x"]
    assert manager.ask(other, CLIENT).metrics == []


def test_a_retry_before_the_interval_is_refused(manager: ClientMetricsManager, time: Time) -> None:
    instance = manager.ask(ZERO_UUID, CLIENT)
    with pytest.raises(KafkaError) as error:
        manager.ask(instance.instance_id, CLIENT)
    assert code_of(error) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    time.now_ms += 300_000
    manager.ask(instance.instance_id, CLIENT)


def test_a_change_of_subscriptions_is_returned_at_once(manager: ClientMetricsManager) -> None:
    instance = manager.ask(ZERO_UUID, CLIENT)
    before = instance.subscription_id
    manager.update("new", {"metrics": "x"})
    with pytest.raises(KafkaError) as error:
        manager.accept(instance.instance_id, CLIENT, before, False, 1)
    assert code_of(error) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    manager.update("new", {})
    manager.update("new", {})
    assert manager.ask(instance.instance_id, CLIENT).subscription_id == before


def test_pushing_once_in_the_interval(manager: ClientMetricsManager, time: Time) -> None:
    instance = manager.ask(ZERO_UUID, CLIENT)

    def push(terminating: bool = False, size: int = 1) -> None:
        manager.accept(instance.instance_id, CLIENT, instance.subscription_id, terminating, size)

    push()  # right after it has asked
    with pytest.raises(KafkaError) as error:
        push()
    assert code_of(error) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    time.now_ms += 300_000
    with pytest.raises(KafkaError) as error:
        push(size=1001)
    assert code_of(error) == ErrorCode.TELEMETRY_TOO_LARGE
    push(terminating=True)  # the last one may come at any time
    with pytest.raises(KafkaError) as error:
        push()
    assert code_of(error) == ErrorCode.INVALID_REQUEST


def test_reserved_ids_push_nothing(manager: ClientMetricsManager) -> None:
    with pytest.raises(KafkaError) as error:
        manager.accept(ZERO_UUID, CLIENT, 0, False, 1)
    assert code_of(error) == ErrorCode.INVALID_REQUEST


def test_clients_are_forgotten(
    manager: ClientMetricsManager,
    time: Time,
    forgotten: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_INSTANCES", 2)
    ids = [manager.ask(ZERO_UUID, CLIENT).instance_id for _ in range(3)]
    assert forgotten == ids[:1]
    time.now_ms += 900_001
    manager.forget_silent()
    assert forgotten == ids
    assert manager.instance_count == 0


@pytest.mark.parametrize(
    ("properties", "code", "words"),
    [
        ({"nonsense": "1"}, ErrorCode.INVALID_REQUEST, "Unknown client metrics configuration"),
        ({"interval.ms": "99"}, ErrorCode.INVALID_REQUEST, "interval.ms"),
        ({"interval.ms": "x"}, ErrorCode.INVALID_REQUEST, "interval.ms"),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern"),
        ({"match": "who=x"}, ErrorCode.INVALID_CONFIG, "client_software_version"),
        ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern"),
        ({"match": "client_id=" + "x" * 300}, ErrorCode.INVALID_CONFIG, "256 characters"),
    ],
)
def test_wrong_settings(properties: dict[str, str], code: int, words: str) -> None:
    with pytest.raises(KafkaError, match=words) as error:
        parse_subscription("s", properties)
    assert code_of(error) == code


def test_a_subscription_needs_a_name() -> None:
    with pytest.raises(KafkaError):
        parse_subscription("", {})
