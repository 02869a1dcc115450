"""Access control: what a client without rights gets, field by field as by Apache Kafka.

No client has a name on a plain listener, so rights are given by address: everything is allowed from
127.0.0.1, where the brokers and the administrator are, and next to nothing from 127.0.0.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ottla.controller.tree.znodes_security import (
    LITERAL,
    PREFIXED,
    Acl,
    AclResource,
    acl_path,
    encode_acls,
)
from ottla.protocol.message import Message
from ottla.protocol.messages import (
    create_acls,
    create_topics,
    delete_acls,
    describe_acls,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.registry import API
from tests.differential.access_requests import (
    CLOSED,
    NAMES,
    OPEN,
    SEEN,
    of_groups,
    of_topics,
    of_transactions,
    whole_cluster,
)
from tests.differential.asking import NEWEST_OF_KAFKA_3, Closed, Pair
from tests.differential.conftest import SETTINGS
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.zookeeper_process import start_zookeeper

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
ADMINISTRATOR, CLIENT = "127.0.0.1", "127.0.0.2"


def rights() -> dict[AclResource, list[Acl]]:
    found: dict[AclResource, list[Acl]] = {}
    for kind in ("Topic", "Group", "TransactionalId"):
        of_all, mine = AclResource(LITERAL, kind, "*"), AclResource(PREFIXED, kind, OPEN)
        found[of_all] = [Acl("User:ANONYMOUS", "Allow", "All", ADMINISTRATOR)]
        found[mine] = [Acl("User:*", "Allow", "All", CLIENT)]
        seen = AclResource(LITERAL, kind, SEEN)
        found[seen] = [Acl("User:ANONYMOUS", "Allow", "Describe", CLIENT)]
    cluster = AclResource(LITERAL, "Cluster", "kafka-cluster")
    found[cluster] = [Acl("User:ANONYMOUS", "Allow", "All", ADMINISTRATOR)]
    return found


def give_rights(connect: str, chroot: str) -> None:
    tree = KazooClient(connect)
    tree.start()
    try:
        for resource, acls in rights().items():
            tree.create(f"{chroot}{acl_path(resource)}", encode_acls(acls), makepath=True)
    finally:
        tree.stop()
        tree.close()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("access")
    settings = {**SETTINGS, "authorizer_class_name": AUTHORIZER, "listeners": "PLAINTEXT://:0"}
    with start_zookeeper(folder / "zookeeper") as zookeeper:
        for chroot in ("/kafka", "/ottla"):
            give_rights(zookeeper.connect, chroot)
        kafka_at, ottla_at = f"{zookeeper.connect}/kafka", f"{zookeeper.connect}/ottla"
        del settings["listeners"]
        with (
            start_kafka(folder / "kafka", zookeeper=kafka_at, **settings) as kafka,
            start_broker(folder / "ottla", zookeeper_connect=ottla_at, **settings) as ottla,
        ):
            pair = Pair(kafka.bootstrap, ottla.bootstrap)
            new = [create_topics.CreatableTopic(name, 2, 1) for name in (OPEN, CLOSED, SEEN)]
            pair.compare(create_topics.CreateTopicsRequest(new, 30_000), [7])
            wait_for_coordinators(pair)
            yield pair


def wait_for_coordinators(pair: Pair) -> None:
    """Until both have their internal topics and ids for producers; they are made on first use."""
    questions: list[tuple[Message, int]] = [
        (find_coordinator.FindCoordinatorRequest(OPEN, 0), 3),
        (find_coordinator.FindCoordinatorRequest(OPEN, 1), 3),
        (init_producer_id.InitProducerIdRequest(None, 1000), 1),
        (init_producer_id.InitProducerIdRequest(OPEN, 1000), 1),
        (heartbeat.HeartbeatRequest(OPEN, 1, "absent"), 0),
    ]
    for question, version in questions:

        def is_ready(question: Message = question, version: int = version) -> bool:
            responses = pair.responses(question, version)
            codes = {getattr(response, "error_code", -1) for response in responses}
            return codes in ({0}, {25})  # UNKNOWN_MEMBER_ID is what a loaded group says

        eventually(is_ready, f"not ready for {question}")


@pytest.fixture
def client(brokers: Pair) -> Pair:
    return Pair(brokers.kafka, brokers.ottla, CLIENT)


def versions(request: type[Message], first: int = 0) -> range:
    api = API[request.API_KEY]
    newest = NEWEST_OF_KAFKA_3.get(request.API_KEY, api.max_version)
    return range(max(first, api.min_version), newest + 1)


def batch() -> bytes:
    return build_batch([(1_700_000_000_000, b"k", b"v", None)])


def fit(request: Message, version: int) -> Message:
    """The request without what a version cannot carry."""
    for line in request.FIELDS:
        name, _, carried = line.split()[:3]
        first, _, last = carried.partition("-")
        if not (
            int(first.removesuffix("+")) <= version
            and (carried.endswith("+") or version <= int(last or first))
        ):
            setattr(request, name, getattr(type(request)(), name))
    return request


def compare(pair: Pair, ask: Callable[[int], Message], first: int = 0) -> None:
    """Ask in every version from `first` on; words and where a coordinator is may differ."""
    asked = versions(type(ask(0)), first)
    pair.compare(
        lambda version: fit(ask(version), version), asked, ignore=["error_message", "node_id"]
    )


def ask_to_produce(version: int) -> Message:
    data = [
        produce.TopicProduceData(name, [produce.PartitionProduceData(0, batch())]) for name in NAMES
    ]
    return produce.ProduceRequest(None, 1, 30_000, data)


def ask_to_fetch(version: int) -> Message:
    topics = [fetch.FetchTopic(name, partitions=[fetch.FetchPartition(0)]) for name in NAMES]
    return fetch.FetchRequest(max_bytes=1 << 20, topics=topics, session_id=0, session_epoch=-1)


def test_producing_and_fetching(client: Pair) -> None:
    compare(client, ask_to_produce, 3)
    client.compare(ask_to_fetch, versions(fetch.FetchRequest, 4)[:9])


def test_without_a_response_the_connection_ends(client: Pair) -> None:
    """Nothing can be said to a producer with acks=0 but by hanging up."""
    data = [
        produce.TopicProduceData(name, [produce.PartitionProduceData(0, batch())])
        for name in (OPEN, CLOSED)
    ]
    for version in (3, 11):
        responses = client.responses(produce.ProduceRequest(None, 0, 30_000, data), version)
        assert [type(response) for response in responses] == [Closed, Closed]


def test_looking_up_offsets(client: Pair) -> None:
    def offsets(version: int) -> Message:
        topics = [
            list_offsets.ListOffsetsTopic(
                name, [list_offsets.ListOffsetsPartition(0, timestamp=-2)]
            )
            for name in NAMES
        ]
        return list_offsets.ListOffsetsRequest(topics=topics)

    def epochs(version: int) -> Message:
        topics = [
            offset_for_leader_epoch.OffsetForLeaderTopic(
                name, [offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, 0)]
            )
            for name in NAMES
        ]
        return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=topics)

    client.compare(offsets, versions(list_offsets.ListOffsetsRequest, 1)[:7])
    client.compare(epochs, versions(offset_for_leader_epoch.OffsetForLeaderEpochRequest))


@pytest.mark.parametrize("names", [None, NAMES, (CLOSED,)], ids=["all", "some", "closed"])
def test_metadata(client: Pair, names: tuple[str, ...] | None) -> None:
    def asked(version: int) -> Message:
        topics = None if names is None else [metadata.MetadataRequestTopic(name=n) for n in names]
        if version == 0 and topics is None:
            topics = []
        return metadata.MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=True,
            include_cluster_authorized_operations=8 <= version <= 10,
            include_topic_authorized_operations=version >= 8,
        )

    client.compare(asked, versions(metadata.MetadataRequest))


def test_metadata_with_creation(brokers: Pair, client: Pair) -> None:
    """Of topics that may not be seen, no client learns whether they exist."""
    shown, hidden = (
        metadata.MetadataRequestTopic(name=CLOSED),
        metadata.MetadataRequestTopic(name="not-there"),
    )
    for version in (1, 9, 12):
        responses = client.compare(metadata.MetadataRequest([shown, hidden]), [version])
        codes = [row.error_code for _, response in responses for row in response.topics]  # type: ignore[attr-defined]
        assert codes == [29, 29]


@pytest.mark.parametrize("name", list(whole_cluster()))
def test_the_cluster_is_not_for_all_clients(client: Pair, name: str) -> None:
    compare(client, whole_cluster()[name])


@pytest.mark.parametrize("name", list(of_groups()))
def test_groups(client: Pair, name: str) -> None:
    ask = of_groups()[name]
    kind = type(ask(0))
    # Versions 0 keep offsets in the znode tree, where there is no group to be authorised for.
    first = {offset_commit.OffsetCommitRequest: 1, offset_fetch.OffsetFetchRequest: 1}.get(kind, 0)
    compare(client, ask, first)


@pytest.mark.parametrize("name", list(of_transactions()))
def test_transactions(client: Pair, name: str) -> None:
    compare(client, of_transactions()[name])


@pytest.mark.parametrize("name", list(of_topics()))
def test_topics_and_settings(client: Pair, name: str) -> None:
    ask = of_topics()[name]
    # Version 0 cannot ask for a trial, and what it creates would be there the next time.
    first = 1 if name == "create" else 0
    compare(client, ask, first)


def test_acls_are_made_found_and_removed(brokers: Pair) -> None:
    def made(version: int) -> Message:
        return create_acls.CreateAclsRequest(
            [
                create_acls.AclCreation(2, f"new-{version}", 3, "User:a", "*", 3, 3),
                create_acls.AclCreation(2, f"new-{version}", 3, "User:b", "1.2.3.4", 4, 2),
                create_acls.AclCreation(4, "no-cluster", 3, "User:a", "*", 3, 3),
                create_acls.AclCreation(3, "", 3, "User:a", "*", 3, 3),
                create_acls.AclCreation(3, "a/b", 3, "User:a", "*", 3, 3),
                create_acls.AclCreation(3, "pre", 4 if version else 3, "User:a", "*", 3, 3),
            ]
        )

    compare(brokers, made)
    filters = [
        (1, None, 1, None, None, 1, 1),
        (2, "new-2", 1, None, None, 1, 1),
        (2, "new-2", 2, None, None, 1, 1),
        (3, "preface", 2, None, None, 1, 1),
        (1, None, 4, "User:a", None, 1, 3),
        (2, None, 3, "User:b", "1.2.3.4", 4, 2),
    ]
    for wanted in filters:
        compare(brokers, lambda _, w=wanted: describe_acls.DescribeAclsRequest(*w))
    for version in versions(delete_acls.DeleteAclsRequest):
        doomed = delete_acls.DeleteAclsRequest(
            [
                delete_acls.DeleteAclsFilter(2, f"new-{version}", 3, "User:a", None, 1, 1),
                delete_acls.DeleteAclsFilter(3, "pre", 1 if version else 3, None, None, 1, 1),
                delete_acls.DeleteAclsFilter(7, None, 3, None, None, 1, 1),
            ]
        )
        brokers.compare(doomed, [version])
    compare(brokers, lambda _: describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1))
