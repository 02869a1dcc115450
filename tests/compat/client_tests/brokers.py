"""The brokers that the suites expect, at the ports that are written in their tests.

The runner has a network namespace of its own, so that these ports are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.compat.ecosystem.clusters import OTTLA
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually

_LOGIN = "org.apache.kafka.common.security"
SCRAM = {
    ScramMechanism.SCRAM_SHA_256: b"admin-secret-256",
    ScramMechanism.SCRAM_SHA_512: b"admin-secret-512",
}


_COMMON: dict[str, object] = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
    "group.initial.rebalance.delay.ms": 0,
    "zookeeper.session.timeout.ms": 18_000,
}
_SCRAM_LOGIN = f"{_LOGIN}.scram.ScramLoginModule required;"

#: Only the port 9092, with defaults otherwise.
PLAIN: dict[str, object] = {**_COMMON, "listeners": "PLAINTEXT://127.0.0.1:9092", "broker.id": 0}

#: PLAINTEXT at 9092 and SASL_PLAINTEXT at 9093.
LOGINS: dict[str, object] = {
    **_COMMON,
    "broker.id": 1,
    "listeners": "PLAINTEXT://127.0.0.1:9092,LOGIN://127.0.0.1:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092,LOGIN://localhost:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.login.plain.sasl.jaas.config": (
        f'{_LOGIN}.plain.PlainLoginModule required user_adminplain="admin-secret";'
    ),
    "listener.name.login.scram-sha-256.sasl.jaas.config": _SCRAM_LOGIN,
    "listener.name.login.scram-sha-512.sasl.jaas.config": _SCRAM_LOGIN,
    "message.max.bytes": 200_000_000,
}


@contextmanager
def single_broker(kind: str, directory: Path, settings: Mapping[str, object]) -> Iterator[None]:
    """One broker of the kind with a user for each SCRAM mechanism. An operation for which there
    is no ACL is allowed."""
    start: Callable[..., AbstractContextManager[object]]
    start = start_broker if kind == OTTLA else start_kafka
    with start(directory, **settings):
        admin = AdminClient({"bootstrap.servers": "127.0.0.1:9092", "log_level": 0})
        eventually(lambda: _has_controller(admin), "no controller", seconds=120)
        for mechanism, password in SCRAM.items():
            user = UserScramCredentialUpsertion(
                "adminscram", ScramCredentialInfo(mechanism, 4096), password
            )
            for future in admin.alter_user_scram_credentials([user]).values():
                future.result(60)
        yield


def _has_controller(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=10).controller_id >= 0)
    except KafkaException:  # slow, on a machine that is busy with other things
        return False
