"""Access control as an administrator and a client see it: Kafka's own tool, and a real producer.

The super user is the broker's own address book: no client has a name on a plain listener, so the
administrator's rights are put into the tree before the broker starts, as people do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.apache_kafka import run_tool
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually

pytestmark = pytest.mark.kafka

DEADLINE_S = 60
TOOL = "kafka.admin.AclCommand"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(
        tmp_path,
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        allow_everyone_if_no_acl_found="true",
    ) as started:
        yield started


def acls(broker: BrokerProcess, *arguments: str) -> str:
    return run_tool(TOOL, "--bootstrap-server", broker.bootstrap, *arguments)


def produce(broker: BrokerProcess, topic: str) -> KafkaError | None:
    """What became of one record: None when it is stored."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 30_000})
    results: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        results.append(error)

    producer.produce(topic, b"v", on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    return results[0]


def test_kafkas_tool_closes_and_opens_a_topic(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic("t", 1), NewTopic("u", 1)]).values():
        future.result(DEADLINE_S)
    assert produce(broker, "t") is None
    printed = acls(broker, "--add", "--deny-principal", "User:ANONYMOUS", "--topic", "t")
    assert "permissionType=DENY" in printed
    refused = produce(broker, "t")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert produce(broker, "u") is None
    # Who may not see a topic may not delete it either, nor learn that it exists.
    with pytest.raises(KafkaException) as caught:
        admin.delete_topics(["t"])["t"].result(DEADLINE_S)
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert "t" not in admin.list_topics(timeout=DEADLINE_S).topics
    log = broker.log_file.read_text()
    assert "Principal = User:ANONYMOUS is Denied Operation = " in log
    assert "Traceback" not in log
    # The rule outlives the broker, and goes when it is taken back.
    broker.restart()
    assert "t" not in admin.list_topics(timeout=DEADLINE_S).topics
    acls(broker, "--remove", "--force", "--topic", "t")
    assert produce(broker, "t") is None


def test_a_closed_cluster_is_closed(tmp_path: Path) -> None:
    """Without a super user and without ACLs no client may do anything, and the log names each."""
    with start_broker(
        tmp_path, authorizer_class_name="kafka.security.authorizer.AclAuthorizer"
    ) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([NewTopic("t", 1)])["t"].result(DEADLINE_S)
        assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_super_user_may_do_everything(tmp_path: Path) -> None:
    with start_broker(
        tmp_path,
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:admin;User:ANONYMOUS",
    ) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1)])["t"].result(DEADLINE_S)
        assert produce(broker, "t") is None
        eventually(lambda: "t" in admin.list_topics(timeout=DEADLINE_S).topics)
