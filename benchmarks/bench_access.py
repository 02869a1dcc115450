"""What access control costs: SASL_SSL without an authorizer, and with 5,000 ACLs.

Three brokers are processes with the same settings but for the authorizer, two of them without: how
far those are apart is what the machine adds. One client sends all of them the same requests in
turns, and the processor time of each broker for a request is compared; the least of the rounds
counts, because other programs only add to it. A decision alone is measured, too.

    python -m benchmarks.bench_access [--rounds 20] [--requests 500]
"""

import argparse
import tempfile
import timeit
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from rich.console import Console
from rich.table import Table

from benchmarks.targets import START_DEADLINE_S, Ottla
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_types import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.broker.security.authorization.authorizer import Authorizer
from ottla.controller.tree.znodes_security import PREFIXED, Acl, AclResource
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Versions
from ottla.protocol.client.security import Security
from ottla.protocol.message import Message
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch

ACLS = 5000
TOPIC = "team7-orders"
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
USERS = ("admin", "u7")
DECISIONS = 20_000
# From Fetch version 13 and Produce version 13 on topics have ids on the wire.
BY_NAME = Versions(0, 12)


class Broker(Ottla):
    """One SASL_SSL listener; every user's password is the name with "-secret"."""

    def properties(self) -> dict[str, str]:
        if self._certificates is None:
            self.with_tls()
        accounts = " ".join(f'user_{name}="{name}-secret"' for name in USERS)
        return {
            **super().properties(),
            "listeners": f"SASL_SSL://127.0.0.1:{self.port}",
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="admin" password="admin-secret" {accounts};'
            ),
        }

    def processor_seconds(self) -> float:
        """In nanoseconds where Linux counts them: a tick of 10 ms is too long for a round."""
        assert self.process is not None
        threads = list(Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"))
        if not threads:
            return super().processor_seconds()
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9

    def client(self, user: str) -> BlockingClient:
        """Logs in as one of `USERS`."""
        assert self._certificates is not None
        security = Security(
            "SASL_SSL",
            mechanism="PLAIN",
            username=user,
            password=f"{user}-secret",
            ca_file=str(self._certificates.authority_path),
        )
        return BlockingClient(self.bootstrap, security=security)


class Work(NamedTuple):
    """A request that is sent again and again."""

    name: str
    request: Message


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=500, help="in a round, of each kind")
    options = parser.parse_args()
    console = Console()
    cold_us, warm_us = decision_microseconds()
    console.print(
        f"a decision with {ACLS} prefixed ACLs: {cold_us:.2f} us cold, {warm_us:.2f} us warm"
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        brokers = {
            "without": Broker(Path(folder) / "without", {}),
            "the same again": Broker(Path(folder) / "again", {}),
            "with ACLs": Broker(
                Path(folder) / "with",
                {"authorizer.class.name": AUTHORIZER, "super.users": "User:admin"},
            ),
        }
        clients = {}
        for name, broker in brokers.items():
            broker.launch()
            stack.callback(broker.stop)
            wait_until_it_serves(broker)
            with broker.client("admin") as admin:
                prepare(admin, with_acls=name == "with ACLs")
            # A broker has its ACLs from its start.
            broker.stop()
            broker.launch()
            wait_until_it_serves(broker)
            clients[name] = stack.enter_context(broker.client("u7"))
        table = Table("processor microseconds a request", *brokers, "difference")
        for work in works():
            least = compare(brokers, clients, work, options.rounds, options.requests)
            change = least["with ACLs"] / least["without"] - 1
            table.add_row(work.name, *(f"{us:.1f}" for us in least.values()), f"{change:+.1%}")
        console.print(table)


def decision_microseconds() -> tuple[float, float]:
    """Of one check on topics: looked up, and kept."""
    rules = AclRules()
    for number in range(ACLS):
        rules.replace(
            AclResource(PREFIXED, "Topic", f"team{number}-"),
            [Acl(f"User:u{number}", "Allow", "Read", "*")],
        )
    authorizer = Authorizer(rules, SecurityLog(None))
    connection = SimpleNamespace(principal=Principal("User", "u7"), client_host="127.0.0.1")
    context: Any = SimpleNamespace(connection=connection)

    def look_up() -> None:
        rules.allows(
            "User:u7",
            "127.0.0.1",
            Operation.READ,
            ResourceType.TOPIC,
            TOPIC,
            without_acls=False,
        )

    def decide() -> None:
        authorizer.allows(context, Operation.READ, ResourceType.TOPIC, TOPIC)

    cold, warm = (
        min(timeit.repeat(call, number=DECISIONS, repeat=5)) for call in (look_up, decide)
    )
    return cold / DECISIONS * 1e6, warm / DECISIONS * 1e6


def wait_until_it_serves(broker: Broker) -> None:
    deadline = monotonic() + START_DEADLINE_S
    with broker.client("admin") as admin:
        while True:
            try:
                admin.metadata([], timeout_ms=1000)
                return
            except ClientError:
                if monotonic() > deadline:
                    raise
                sleep(0.1)


def prepare(admin: BlockingClient, *, with_acls: bool) -> None:
    topics = [CreatableTopic(TOPIC, 1, 1, [], [])]
    admin.call_controller(CreateTopicsRequest(topics, 10_000))
    if not with_acls:
        return
    creations = [
        AclCreation(
            ResourceType.TOPIC,
            f"team{number}-",
            PatternType.PREFIXED,
            f"User:u{number}",
            "*",
            operation,
            Permission.ALLOW,
        )
        for number in range(ACLS // 2)
        for operation in (Operation.READ, Operation.WRITE)
    ]
    for start in range(0, len(creations), 500):
        admin.call_controller(CreateAclsRequest(creations[start : start + 500]), timeout_ms=60_000)


def works() -> list[Work]:
    small, usual = (
        ProduceRequest(
            None,
            1,
            30_000,
            [TopicProduceData(TOPIC, [PartitionProduceData(0, records_of(count))])],
        )
        for count in (1, 100)
    )
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=16_384)
    fetch = FetchRequest(
        max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[partition])]
    )
    return [
        Work("produce 1 record", small),
        Work("produce 100 records of 100 bytes", usual),
        Work("fetch 16 KiB", fetch),
    ]


def records_of(count: int) -> bytes:
    return build_batch((1_700_000_000_000, None, b"v" * 100, ()) for _ in range(count))


def compare(
    brokers: dict[str, Broker],
    clients: dict[str, BlockingClient],
    work: Work,
    rounds: int,
    requests: int,
) -> dict[str, float]:
    """The least processor time a request, in microseconds; the first round is not counted."""
    found: dict[str, list[float]] = {name: [] for name in brokers}
    for number in range(rounds + 1):
        # In both directions: who comes first has colder caches.
        for name in sorted(brokers, reverse=bool(number % 2)):
            broker = brokers[name]
            send = clients[name].send
            before = broker.processor_seconds()
            for _ in range(requests):
                check(send(None, work.request, versions=BY_NAME))
            if number:
                found[name].append((broker.processor_seconds() - before) / requests * 1e6)
    return {name: min(times) for name, times in found.items()}


def check(response: Message) -> None:
    """A refused request is quick: it must not count."""
    for topic in cast("Any", response).responses:
        for row in getattr(topic, "partition_responses", None) or topic.partitions:
            if row.error_code:
                raise RuntimeError(f"the broker returned error {row.error_code}")


if __name__ == "__main__":
    main()
