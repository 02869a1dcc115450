"""The console of one broker shows and changes the whole cluster, through the protocol."""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ottla.broker.observability.console import history
from ottla.testing import Broker, Cluster
from tests.doubles.console_client import ConsoleClient
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import PLAIN_LOGIN

SECONDS = 60.0
TOPIC = "orders"
PARTITIONS = 6
RECORDS = 600


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"ottla_console_enable": True, "ottla_metrics_address": "127.0.0.1:0"}
    with pytest.MonkeyPatch.context() as patch, Cluster(brokers=3, **settings) as made:
        # A test does not wait seconds for the next sample.
        patch.setattr(history, "INTERVAL_MS", 200)
        patch.setattr(history, "TICK_SECONDS", 0.1)
        made.create_topic(TOPIC, partitions=PARTITIONS)
        producer = Producer({"bootstrap.servers": made.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(
                TOPIC,
                f"value {number}",
                f"key {number}",
                partition=number % PARTITIONS,
                timestamp=1_000_000 + number,
            )
        assert producer.flush(SECONDS) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": made.bootstrap,
                "group.id": "readers",
                "client.id": "reader",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([TOPIC])
        assert len(consumer.consume(RECORDS, SECONDS)) == RECORDS
        consumer.commit(asynchronous=False)
        yield made
        consumer.close()


def console(cluster: Cluster, broker_id: int = 1) -> ConsoleClient:
    return ConsoleClient(cluster[broker_id].server.metrics_port)


def names(page: ConsoleClient) -> set[str]:
    return {row["name"] for row in page.get("topics")["topics"]}


@pytest.mark.parametrize("broker_id", [1, 2, 3])
def test_each_broker_shows_the_same_cluster(cluster: Cluster, broker_id: int) -> None:
    page = console(cluster, broker_id)
    overview = eventually(lambda: (found := page.get("overview"))["groups"] and found)
    assert [(row["id"], row["responds"]) for row in overview["brokers"]] == [
        (1, True),
        (2, True),
        (3, True),
    ]
    assert all(row["disk_bytes"] > row["free_bytes"] > 0 for row in overview["brokers"])
    (row,) = page.get(f"topics?search={TOPIC}")["topics"]
    assert (row["records"], row["replicas"]) == (RECORDS, 3)
    topic = page.get(f"topic?name={TOPIC}")
    assert {each["leader"] for each in topic["rows"]} == {1, 2, 3}
    assert sum(each["end_offset"] for each in topic["rows"]) == RECORDS
    # All replicas together.
    assert topic["size_bytes"] == 3 * sum(each["size_bytes"] for each in topic["rows"])
    group = eventually(lambda: (found := page.get("group?name=readers"))["offsets"] and found)
    assert sum(each["lag"] for each in group["offsets"]) == 0
    assert group["member_rows"][0]["assignment"] == {TOPIC: list(range(PARTITIONS))}
    assert {each["owner"] for each in group["offsets"]} == {"reader"}
    assert "stable" in {each["kind"] for each in group["events"]}
    others = {1, 2, 3} - {broker_id}
    for other in others:
        settings = page.get(f"settings?broker={other}")
        values = {each["name"]: each["value"] for each in settings["settings"]}
        assert values["broker.id"] == str(other)


def test_traffic_of_all_brokers(cluster: Cluster) -> None:
    page = console(cluster)
    eventually(lambda: page.get("overview")["rates_of_brokers"] == 3)


def test_records_of_all_leaders(cluster: Cluster) -> None:
    page = console(cluster)
    newest = page.get(f"messages?topic={TOPIC}&limit=3")
    assert [row["value"]["text"] for row in newest["records"]] == [
        "value 597",
        "value 598",
        "value 599",
    ]
    # By a filter, which reads all of them.
    found = page.get(f"messages?topic={TOPIC}&offset=0&value=value%2042&limit=200")
    texts = sorted(row["value"]["text"] for row in found["records"])
    assert texts == sorted(["value 42", *(f"value 42{digit}" for digit in range(10))])
    assert found["scanned"] == RECORDS
    assert found["at_end"]
    by_key = page.get(f"messages?topic={TOPIC}&key=key%20599")
    assert [row["offset"] for row in by_key["records"]] == [99]
    # From a time: the record itself, and those after it.
    at = page.get(f"messages?topic={TOPIC}&time={1_000_000 + 590}&limit=4")
    assert [row["value"]["text"] for row in at["records"]] == [
        "value 590",
        "value 591",
        "value 592",
        "value 593",
    ]


def test_pages_of_records_leave_nothing_out(cluster: Cluster) -> None:
    page = console(cluster)
    seen: list[int] = []
    position = 0
    while True:
        found = page.get(f"messages?topic={TOPIC}&partition=4&offset={position}&limit=30")
        seen += [row["offset"] for row in found["records"]]
        if found["at_end"]:
            break
        position = found["partitions"][0]["next"]
    assert seen == list(range(RECORDS // PARTITIONS))


def test_a_topic_from_its_creation_to_its_end(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    page = console(cluster, 2)
    page.act(
        "topic/create",
        name="made",
        partitions=2,
        replication_factor=2,
        configs={"retention.ms": "1000000"},
    )
    status, text = page.refused(
        "topic/create", name="made", partitions=1, replication_factor=1, configs={}
    )
    assert (status, "already exists" in text) == (409, True)
    assert page.refused("topic/create", name="a/b", partitions=1, replication_factor=1)[0] == 409
    eventually(lambda: "made" in names(page))
    page.act("topic/partitions", name="made", count=4)
    assert page.refused("topic/partitions", name="made", count=3)[0] == 409
    page.act("topic/setting", name="made", setting="retention.ms", value="2000000")
    assert (
        "INVALID_CONFIG"
        in page.refused("topic/setting", name="made", setting="retention.ms", value="long")[1]
    )

    def own() -> dict[str, str]:
        rows = page.get("topic?name=made")["settings"]
        return {row["name"]: row["value"] for row in rows if row["source"] == "topic"}

    eventually(lambda: own() == {"retention.ms": "2000000"})
    page.act("topic/setting", name="made", setting="retention.ms", value=None)
    eventually(lambda: own() == {})
    eventually(lambda: page.get("topic?name=made")["partitions"] == 4)
    for partition in range(4):
        made = page.act(
            "record/produce",
            topic="made",
            partition=partition,
            key="k" if partition else None,
            value=f"grün {partition}",
            headers=[{"name": "trace", "value": "7"}, {"name": "empty", "value": None}],
        )
        assert made["offset"] == 0
    read = page.get("messages?topic=made")["records"]
    assert {row["value"]["text"] for row in read} == {f"grün {each}" for each in range(4)}
    assert read[0]["headers"][1] == ["empty", None]
    assert page.refused("record/produce", topic="made", partition=9, value="x")[0] == 404
    status, text = page.refused("topic/delete", name="made", confirm="mad")
    assert (status, "type made" in text) == (400, True)
    page.act("topic/delete", name="made", confirm="made")
    eventually(lambda: "made" not in names(page))
    for line in (
        "Created topic made (console)",
        "Changed topic made to 4 partitions (console)",
        "Changed configuration of topic made: retention.ms",
        "Produced a record to made-3 at offset 0 (console)",
        "Deleted topic made (console)",
    ):
        assert f"User:ANONYMOUS from 127.0.0.1:0 on listener HTTP: {line}" in caplog.text, line
    shown = page.get("events?search=made")["events"]
    assert {"Topic made created with 2 partitions", "Topic made deleted"} <= {
        row["text"] for row in shown
    }


def test_a_setting_of_another_broker(cluster: Cluster) -> None:
    page = console(cluster, 1)

    def value() -> tuple[str, str]:
        rows = page.get("settings?broker=3")["settings"]
        (row,) = [each for each in rows if each["name"] == "log.cleaner.threads"]
        return row["value"], row["source"]

    page.act("broker/setting", broker_id=3, setting="log.cleaner.threads", value="2")
    eventually(lambda: value() == ("2", "broker, at run time"))
    page.act("broker/setting", broker_id=3, setting="log.cleaner.threads", value=None)
    eventually(lambda: value() == ("1", "default"))


def test_offsets_are_reset_after_a_dry_run(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    page = console(cluster)
    # The group that reads now cannot be reset, which the dry run shows.
    plan = page.act("group/plan", group="readers", topic="", to="earliest")
    assert plan["state"] == "Stable"
    assert "has members" in page.refused("group/reset", group="readers", rows=plan["rows"])[1]

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "replayed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    assert len(consumer.consume(RECORDS, SECONDS)) == RECORDS
    consumer.commit(asynchronous=False)
    consumer.close()
    for way, expected in (
        ({"to": "time", "amount": 1_000_000 + 300}, 50),
        ({"to": "offset", "amount": 20}, 20),
        ({"to": "shift", "amount": -30}, 70),
        ({"to": "latest"}, 100),
        ({"to": "earliest"}, 0),
    ):
        plan = page.act("group/plan", group="replayed", topic=TOPIC, **way)
        assert {(row["before"], row["after"]) for row in plan["rows"]} == {(100, expected)}, way
    # Nothing was changed by the dry runs.
    page.act("group/reset", group="replayed", rows=plan["rows"])
    status, text = page.refused("group/reset", group="replayed", rows=plan["rows"])
    assert (status, "since the dry run" in text) == (400, True)
    again = page.act("group/plan", group="replayed", topic="", to="latest")
    assert {(row["before"], row["after"]) for row in again["rows"]} == {(0, 100)}
    assert "Reset 6 offsets of group replayed in topic orders (console)" in caplog.text
    assert page.refused("group/delete", group="replayed", confirm="")[0] == 400
    page.act("group/delete", group="replayed", confirm="replayed")
    eventually(lambda: "replayed" not in json.dumps(page.get("groups")))


def of_a_silent_broker(overview: Any) -> Any:
    """The overview, if broker 3 does not respond in it; what it shows may be seconds old."""
    responds = {row["id"]: row["responds"] for row in overview["brokers"]}
    return None if responds[3] else overview


def test_a_broker_that_does_not_respond_is_named(cluster: Cluster) -> None:
    page = console(cluster, 1)
    faults = cluster[3].faults
    with (
        faults.disconnect("DescribeLogDirs", client_id="console-1"),
        faults.disconnect("ListOffsets", client_id="console-1"),
    ):
        found = page.get(f"topic?name={TOPIC}")
        assert any("Broker 3 did not respond" in text for text in found["problems"])
        # What the others say is shown.
        known = {row["leader"] for row in found["rows"] if row["end_offset"] is not None}
        assert known == {1, 2}
        overview = eventually(lambda: of_a_silent_broker(page.get("overview")))
        assert any("Broker 3 did not respond" in text for text in overview["problems"])
    assert page.get(f"topic?name={TOPIC}")["problems"] == []


def test_what_each_broker_reports_of_itself_is_shown(cluster: Cluster) -> None:
    page = console(cluster, 1)
    state = cluster[2].server._state
    assert state is not None
    state.zookeeper_connected = False
    try:

        def faults() -> list[dict[str, str]]:
            rows = {row["id"]: row["faults"] for row in page.get("overview")["brokers"]}
            assert rows[1] == rows[3] == []
            found: list[dict[str, str]] = rows[2]
            return found

        (fault,) = eventually(faults)
        assert fault["name"] == "zookeeper-disconnected"
        assert fault["fix"]
    finally:
        state.zookeeper_connected = True
    eventually(lambda: not faults())


def test_a_change_of_another_site_is_refused(cluster: Cluster) -> None:
    page = console(cluster)
    body = {"name": "stolen", "partitions": 1, "replication_factor": 1}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Content-Type": "text/plain"},
        {"X-Ottla-Console": ""},
        {"Host": "evil.example"},
    ):
        assert page.send("POST", "topic/create", body, headers)[0] == 403, headers
    assert page.send("POST", "topic/create", None, {"Content-Length": "0"})[0] == 403
    assert page.send("POST", "no/such", {})[0] == 404
    assert page.send("POST", "topic/create", {"name": 7})[0] == 400
    assert "stolen" not in names(page)


def test_the_console_may_do_what_its_principal_may(caplog: pytest.LogCaptureFixture) -> None:
    """On both ways: by the handlers of this broker, and in front of requests to another one, which
    knows only that a broker sends them."""
    caplog.set_level(logging.INFO)
    with Cluster(
        brokers=2,
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        ottla_console_principal="User:console",
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS",
    ) as cluster:
        cluster.create_topic("secret", partitions=2)
        cluster.create_topic("orders", partitions=2)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        pages = [console(cluster, 1), console(cluster, 2)]
        creation = {"name": "new", "partitions": 1, "replication_factor": 1}
        acl = {"principal": "User:console", "operation": "ALL", "resource": "TOPIC", "name": "*"}
        for page in pages:
            for path, body in (
                ("topic/create", creation),
                ("topic/delete", {"name": "orders", "confirm": "orders"}),
                ("topic/partitions", {"name": "orders", "count": 9}),
                ("topic/setting", {"name": "orders", "setting": "retention.ms", "value": "1"}),
                (
                    "broker/setting",
                    {"broker_id": 1, "setting": "log.cleaner.threads", "value": "2"},
                ),
                (
                    "broker/setting",
                    {"broker_id": 2, "setting": "log.cleaner.threads", "value": "2"},
                ),
                ("record/produce", {"topic": "orders", "partition": 0, "value": "x"}),
                ("record/produce", {"topic": "orders", "partition": 1, "value": "x"}),
                ("group/plan", {"group": "g", "to": "latest"}),
                ("acl/create", acl),
                ("acl/delete", acl),
                ("user/set", {"user": "eve", "mechanism": "SCRAM-SHA-512", "password": "12345678"}),
            ):
                status, text = page.refused(path, **body)
                assert status == 403, (path, text)
            records = ("messages?topic=orders", "download?topic=orders")
            followed = "follow?topic=orders&at=0:0&follower=one"
            for path in ("overview", "events", "settings", "security", *records, followed):
                assert page.send("GET", path)[0] == 403, path
            assert page.get("topics")["topics"] == []
            assert page.get("groups")["groups"] == []
        assert "Principal = User:console is Denied Operation = Create from" in caplog.text
        for kind, name, operation in (
            (ResourceType.TOPIC, "orders", AclOperation.ALL),
            (ResourceType.BROKER, "kafka-cluster", AclOperation.ALTER),
            (ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE),
        ):
            allow(admin, kind, name, operation)
        for number, page in enumerate(pages):
            eventually(lambda page=page: names(page) == {"orders"})
            for partition in (0, 1):
                page.act("record/produce", topic="orders", partition=partition, value="x")
            assert len(page.get("messages?topic=orders")["records"]) == 2 * (number + 1)
            assert page.refused("topic/delete", name="secret", confirm="secret")[0] == 403
            page.act("acl/create", **acl | {"name": f"made-{number}", "operation": "READ"})
            row = {**acl, "name": f"made-{number}", "operation": "READ"}
            shown = eventually(
                lambda page=page, row=row: [
                    each
                    for each in page.get("security?search=made")["acls"]
                    if each["name"] == row["name"]
                ]
            )
            page.act("acl/delete", **shown[0])
            user = f"user-{number}"
            page.act("user/set", user=user, mechanism="SCRAM-SHA-256", password="a-long-password")
            eventually(
                lambda page=page, user=user: (
                    {"user": user, "mechanisms": ["SCRAM-SHA-256"]} in page.get("security")["users"]
                )
            )
            page.act("user/delete", user=user, confirm=user, mechanism="SCRAM-SHA-256")
    assert "User:console from 127.0.0.1:0 on listener HTTP: Added ACL ALLOW User:console" in (
        caplog.text
    )
    assert "Changed credentials of user user-1: set SCRAM-SHA-256" in caplog.text
    assert "a-long-password" not in caplog.text


def allow(admin: AdminClient, kind: ResourceType, name: str, operation: AclOperation) -> None:
    acl = AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        "User:console",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([acl]).values():
        future.result(SECONDS)


def test_a_broker_with_passwords_needs_the_token_for_changes() -> None:
    listeners = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "SCRAM-SHA-512",
    }
    body = {"name": "new", "partitions": 1, "replication_factor": 1}
    with Broker(
        ottla_console_enable=True, ottla_metrics_address="127.0.0.1:0", **listeners
    ) as broker:
        page = ConsoleClient(broker.server.metrics_port)
        assert "ottla.console.token" in page.get("overview")["read_only"]
        status, text = page.refused("topic/create", **body)
        assert (status, "ottla.console.token" in text) == (403, True)
    token = "sixteen-or-more-characters"
    with Broker(
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        ottla_console_token=token,
        **listeners,
    ) as broker:
        ConsoleClient(broker.server.metrics_port, token).act("topic/create", **body)


def test_other_brokers_are_reached_with_the_login_of_brokers() -> None:
    login = f'{PLAIN_LOGIN} username="broker" password="br0ker-x" user_broker="br0ker-x";'
    token = "sixteen-or-more-characters"
    with Cluster(
        brokers=2,
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        ottla_console_token=token,
        listeners="PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,INSIDE:SASL_PLAINTEXT",
        inter_broker_listener_name="INSIDE",
        sasl_enabled_mechanisms="PLAIN",
        sasl_mechanism_inter_broker_protocol="PLAIN",
        listener_name_inside_plain_sasl_jaas_config=login,
    ) as cluster:
        cluster.create_topic("orders", partitions=2)
        page = ConsoleClient(cluster[1].server.metrics_port, token)
        for partition in (0, 1):
            page.act("record/produce", topic="orders", partition=partition, value="x")
        assert len(page.get("messages?topic=orders")["records"]) == 2
        # The last sample may be one during the start of broker 2.
        overview = eventually(lambda: not (found := page.get("overview"))["problems"] and found)
        assert [row["responds"] for row in overview["brokers"]] == [True, True]


def test_a_read_only_console() -> None:
    with Broker(
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        ottla_console_read_only=True,
    ) as broker:
        page = ConsoleClient(broker.server.metrics_port)
        status, text = page.refused("topic/create", name="a", partitions=1, replication_factor=1)
        assert (status, "ottla.console.read.only" in text) == (403, True)
        assert page.get("topics")["topics"] == []


@pytest.mark.parametrize(
    ("length", "status"),
    [(None, 411), ("-1", 411), ("²", 411), ("9" * 30, 411), (str((1 << 20) + 1), 413), ("2", 400)],
)
def test_the_length_of_a_change_is_checked_before_it_is_read(
    cluster: Cluster, length: str | None, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", cluster[1].server.metrics_port)
    connection.putrequest("POST", "/api/topic/create")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("X-Ottla-Console", "1")
    if length is not None:
        connection.putheader("Content-Length", length.encode("latin-1"))
    connection.endheaders(b"[]")
    response = connection.getresponse()
    assert (response.status, "error" in json.loads(response.read())) == (status, True)
    connection.close()
