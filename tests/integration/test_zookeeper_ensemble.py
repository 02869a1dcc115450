"""A broker on an ensemble as people run it: TLS, members that restart, hang, lose their quorum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.certificates import Certificates
from tests.doubles.eventually import eventually
from tests.doubles.zookeeper_process import EnsembleMember, start_ensemble

pytestmark = pytest.mark.zookeeper

SECONDS = 60.0
SESSION_TIMEOUT_MS = 12_000
ESTABLISHED = "01"


class Scene:
    def __init__(self, members: list[EnsembleMember], broker: BrokerProcess) -> None:
        self.members = members
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def create(self, name: str) -> None:
        """Until it is there: a request whose response from ZooKeeper was lost times out."""

        def is_created() -> bool:
            try:
                self.admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS)
            except KafkaException as error:
                return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
            return True

        eventually(is_created, f"{name} is not created", seconds=SECONDS, pause_seconds=0.2)

    def produce(self) -> None:
        """Without ZooKeeper, too."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "acks": "all"})
        producer.produce("before", b"x")
        assert producer.flush(SECONDS) == 0

    def connected(self) -> EnsembleMember | None:
        """The member that the broker is connected to now; no other client uses these ports."""
        ports = {each.secure_port: each for each in self.members}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, _, remote, state, *_ = line.split()
            if state == ESTABLISHED and int(remote.partition(":")[2], 16) in ports:
                return ports[int(remote.partition(":")[2], 16)]
        return None

    def registration(self) -> int:
        """The transaction that registered the broker: another one after a lost session."""
        leader = next(each for each in self.members if each.mode == "leader")
        client = KazooClient(leader.connect)
        client.start(SECONDS)
        try:
            return int(client.get("/brokers/ids/0")[1].czxid)
        finally:
            client.stop()
            client.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    certificates = Certificates(tmp_path)
    with (
        start_ensemble(tmp_path, certificates) as members,
        start_broker(
            tmp_path,
            broker_id=0,
            zookeeper_connect=",".join(f"127.0.0.1:{each.secure_port}" for each in members),
            zookeeper_session_timeout_ms=SESSION_TIMEOUT_MS,
            zookeeper_ssl_client_enable="true",
            zookeeper_ssl_truststore_location=certificates.authority_path,
            zookeeper_ssl_keystore_location=certificates.client_path,
        ) as broker,
    ):
        yield Scene(members, broker)


def test_members_that_restart_hang_and_serve_readers_only_keep_the_session(scene: Scene) -> None:
    scene.create("before")
    registration = scene.registration()
    for member in scene.members:  # a rolling restart
        member.restart()
        member.wait_for_mode("leader", "follower")
    scene.create("restarted")
    hanging = scene.connected()
    assert hanging is not None
    hanging.pause()
    scene.produce()
    scene.create("hung")
    assert scene.connected() is not hanging
    hanging.resume()
    hanging.wait_for_mode("leader", "follower")
    assert scene.registration() == registration

    first, second, third = scene.members
    second.stop()
    third.stop()
    first.wait_for_mode("read-only")  # which serves no client that writes
    scene.broker.wait_for_log("Fault zookeeper-disconnected")
    scene.produce()
    for member in (second, third):
        member.start()
    for member in scene.members:
        member.wait_for_mode("leader", "follower")
    scene.create("quorum")
    assert scene.registration() == registration
