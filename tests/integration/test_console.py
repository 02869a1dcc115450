"""The web console's endpoints over HTTP, with real traffic behind them."""

import asyncio
import http.client
import json
import subprocess
import sys
import urllib.parse
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

from ottla.broker.config.definitions import Setting
from ottla.broker.config.errors import ConfigError
from ottla.broker.observability.console import events
from ottla.broker.observability.console.console import PREFIX, SCRIPTS
from ottla.broker.observability.console.record_views import MAX_SHOWN_BYTES, shown
from ottla.broker.observability.console.settings_views import MASK
from ottla.broker.testing.embedded import Broker
from tests.doubles.broker_process import ROOT
from tests.doubles.eventually import eventually

DEADLINE_S = 60.0
TOPIC = "orders"
RECORDS = 300
READ = 100


def get(
    broker: Broker, path: str, host: str = "localhost", token: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers with names in small letters, body."""
    headers = {"Host": host}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection("127.0.0.1", broker.server.metrics_port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return (
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            response.read(),
        )
    finally:
        connection.close()


def api(broker: Broker, path: str) -> Any:
    status, _, body = get(broker, f"/api/{path}")
    assert status == 200, body
    return json.loads(body)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        ssl_keystore_password="very-secret",
    ) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap, "compression.type": "zstd"})
        for number in range(RECORDS):
            value = json.dumps({"number": number, "name": "<script>alert(1)</script>"})
            producer.produce(TOPIC, value, f"k{number}", headers=[("trace", b"\x00\xff")])
        assert producer.flush(DEADLINE_S) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": running.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([TOPIC])
        assert len(consumer.consume(READ, DEADLINE_S)) == READ
        consumer.commit(asynchronous=False)
        yield running
        consumer.close()


def test_pages_come_whole_and_from_here(broker: Broker) -> None:
    for path, kind in (
        ("/", "text/html"),
        (PREFIX, "text/html"),
        (f"{PREFIX}/style.css", "text/css"),
        *((f"{PREFIX}/{name}", "text/javascript") for name in SCRIPTS),
    ):
        status, headers, body = get(broker, path)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        # The one address that may stand in them names SVG's elements and is never asked.
        assert b"http" not in body.replace(b"http://www.w3.org/2000/svg", b"").replace(b"HTTP", b"")
    assert get(broker, f"{PREFIX}/../console.py")[0] == 404
    assert get(broker, "/metrics")[0] == 200


def test_overview(broker: Broker) -> None:
    found = eventually(lambda: (page := api(broker, "overview"))["groups"] and page)
    assert found["controller_id"] == found["broker_id"]
    assert found["offline"] == found["under_replicated"] == 0
    assert found["groups"] == 1
    assert [each["alive"] for each in found["brokers"]] == [True]
    assert found["brokers"][0]["listeners"] == [f"PLAINTEXT://{broker.bootstrap}"]


def test_topics(broker: Broker) -> None:
    found = api(broker, "topics?search=ORD")
    assert [(each["name"], each["records"]) for each in found["topics"]] == [(TOPIC, RECORDS)]
    assert found["topics"][0]["size_bytes"] > 0
    one = api(broker, f"topic?name={TOPIC}")
    assert one["rows"][0]["end_offset"] == RECORDS
    assert one["rows"][0]["size_bytes"] > 0
    assert one["rows"][0]["isr"] == one["rows"][0]["replicas"]
    status, _, body = get(broker, "/api/topic?name=no-such-topic")
    assert status == 404
    assert "There is no topic no-such-topic." in json.loads(body)["error"]


def test_messages(broker: Broker) -> None:
    newest = api(broker, f"messages?topic={TOPIC}&limit=3")
    assert [each["offset"] for each in newest["records"]] == [297, 298, 299]
    first = api(broker, f"messages?topic={TOPIC}&offset=0&limit=2")["records"]
    assert [each["key"]["text"] for each in first] == ["k0", "k1"]
    assert first[0]["value"]["kind"] == "JSON"
    assert json.loads(first[0]["value"]["text"])["name"] == "<script>alert(1)</script>"
    assert first[0]["headers"] == [["trace", {"kind": "bytes", "text": "00 ff", "bytes": 2}]]
    assert api(broker, f"messages?topic={TOPIC}&offset={RECORDS}")["records"] == []
    assert (
        len(api(broker, f"messages?topic={TOPIC}&partition=0&offset=0&limit=99999")["records"])
        == 200
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("messages", "the parameter topic is missing"),
        (f"messages?topic={TOPIC}&offset=1e3", "offset is not a whole number"),
        (f"messages?topic={TOPIC}&offset=" + "9" * 5000, "offset is not a whole number"),
        ("topics?search=%ff", "the query cannot be read"),
        ("topics?" + "&".join(f"p{n}=1" for n in range(50)), "the query cannot be read"),
    ],
)
def test_a_bad_request_gets_an_error_text(broker: Broker, path: str, said: str) -> None:
    status, _, body = get(broker, f"/api/{path}")
    assert status == 400
    assert said in json.loads(body)["error"]


def test_a_partition_that_is_not_there(broker: Broker) -> None:
    status, _, body = get(broker, f"/api/messages?topic={TOPIC}&partition=7")
    assert status == 404
    assert f"Partition {TOPIC}-7 does not exist." in json.loads(body)["error"]
    assert get(broker, "/api/nothing")[0] == 404


@pytest.mark.parametrize("number", ["99", "abc", "-7", "1.5", "99999999999", "٣", ""])
def test_an_address_that_leads_nowhere(broker: Broker, number: str) -> None:
    """A wrong id in an address is not found, and is not taken for another one."""
    given = urllib.parse.quote(number)
    at = "&at=0:0&follower=one"
    for path in (
        f"messages?topic={TOPIC}&partition={given}",
        f"download?topic={TOPIC}&partition={given}",
        f"follow?topic={TOPIC}&partition={given}{at}",
        f"settings?broker={given}",
    ):
        status, _, body = get(broker, f"/api/{path}")
        error = json.loads(body)["error"]
        assert (status, number in error, error[-1]) == (404, True, "."), error


def test_groups_with_their_lag(broker: Broker) -> None:
    listed = eventually(
        lambda: [each for each in api(broker, "groups")["groups"] if each["lag"]],
    )
    assert listed[0]["group"] == "readers"
    assert listed[0]["lag"][-1][1] == RECORDS - READ
    assert api(broker, "groups")["lacks"] == api(broker, "topics")["lacks"] == ""
    one = api(broker, "group?name=readers")
    assert [(each["offset"], each["lag"]) for each in one["offsets"]] == [(READ, RECORDS - READ)]
    # And in seconds, which begin with the first sample.
    assert listed[0]["lag_seconds"] >= 0
    assert one["offsets"][0]["lag_seconds"] >= 0
    (member,) = one["member_rows"]
    assert member["assignment"] == {TOPIC: [0]}
    assert one["offsets"][0]["owner"] == member["client"]
    assert "stable" in {each["kind"] for each in one["events"]}
    assert get(broker, "/api/group?name=absent")[0] == 404


def test_the_newest_event_comes_first(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create_topic("older")
    broker.create_topic("newer")

    def texts() -> list[str]:
        return [row["text"] for row in api(broker, "events?search=created%20with")["events"]]

    found = eventually(lambda: (rows := texts())[0].startswith("Topic newer") and rows)
    assert found[1].startswith("Topic older")
    times = [row["time_ms"] for row in api(broker, "events")["events"]]
    assert times == sorted(times, reverse=True)
    everything = api(broker, "events")
    assert everything["more"] == 0
    monkeypatch.setattr(events, "MAX_ROWS", 1)
    cut = api(broker, "events")
    assert (len(cut["events"]), cut["more"] > 0) == (1, True)


def test_secrets_are_masked(broker: Broker) -> None:
    status, _, body = get(broker, "/api/settings")
    assert status == 200
    assert b"very-secret" not in body
    rows = {each["name"]: each for each in json.loads(body)["settings"]}
    assert rows["ssl.keystore.password"]["value"] == MASK
    assert rows["ottla.console.enable"]["value"] == "true"
    assert rows["ottla.console.enable"]["source"] == "at start"
    assert Setting(("x", "password", "null", "", "low", "read-only")).sensitive


def test_another_name_for_this_machine_is_refused(broker: Broker) -> None:
    """A page of another site whose name points here must not read anything."""
    status, _, body = get(broker, "/api/overview", host="evil.example:9404")
    assert status == 403
    assert b"ottla.console.hosts" in body


TOKEN = "a-token-of-a-test"


def test_remote_use_needs_the_token_and_a_known_name() -> None:
    """What the compose file does: the peer is another machine, so only name and token protect."""
    with Broker(
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        ottla_console_allow_remote=True,
        ottla_console_token=TOKEN,
        ottla_console_hosts="console.example.org",
    ) as broker:
        # The pages have nothing of the cluster.
        assert get(broker, PREFIX)[0] == 200
        for token in (None, "wrong"):
            status, _, body = get(broker, "/api/overview", token=token)
            assert status == 401
            assert "ottla.console.token" in json.loads(body)["error"]
        for host in ("localhost", "console.example.org:9404", "10.1.2.3:9404"):
            assert get(broker, "/api/overview", host, TOKEN)[0] == 200
        for host in ("evil.example", "evil.example:9404", ""):
            assert get(broker, "/api/overview", host, TOKEN)[0] == 403
            assert get(broker, PREFIX, host)[0] == 403
        settings = get(broker, "/api/settings", token=TOKEN)[2]
        assert TOKEN.encode() not in settings


@pytest.mark.parametrize("token", [None, "short"])
def test_remote_use_without_a_good_token_does_not_start(token: str | None) -> None:
    settings: dict[str, Any] = {} if token is None else {"ottla_console_token": token}
    with (
        pytest.raises(ConfigError, match=r"ottla\.console\.token"),
        Broker(ottla_console_enable=True, ottla_console_allow_remote=True, **settings),
    ):
        pass


def test_the_console_shows_what_its_principal_may_see() -> None:
    with Broker(
        ottla_console_enable=True,
        ottla_metrics_address="127.0.0.1:0",
        ottla_console_principal="User:console",
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS",
    ) as broker:
        for name in ("orders", "secret"):
            broker.create_topic(name)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for path in ("overview", "events", "settings", "topic?name=orders"):
            status, _, body = get(broker, f"/api/{path}")
            assert status == 403, path
            assert "User:console" in json.loads(body)["error"]
        for path, kind in (("topics", "TOPIC"), ("groups", "GROUP")):
            listed = api(broker, path)
            assert listed[path] == []
            assert "User:console (ottla.console.principal)" in listed["lacks"]
            assert f"an ACL for DESCRIBE on {kind} resources" in listed["lacks"]
        acls = [
            AclBinding(
                ResourceType.TOPIC,
                "orders",
                ResourcePatternType.LITERAL,
                "User:console",
                "*",
                AclOperation.DESCRIBE,
                AclPermissionType.ALLOW,
            )
        ]
        for future in admin.create_acls(acls).values():
            future.result(DEADLINE_S)
        assert [each["name"] for each in api(broker, "topics")["topics"]] == ["orders"]
        one = api(broker, "topic?name=orders")
        assert one["settings"] == []
        assert one["size_bytes"] is None
        assert set(one["may"].values()) == {False}
        assert get(broker, "/api/topic?name=secret")[0] == 403
        # DESCRIBE is not READ.
        assert get(broker, "/api/messages?topic=orders")[0] == 403


def test_what_bytes_look_like() -> None:
    assert shown(None) is None
    assert shown("grün".encode()) == {"kind": "text", "text": "grün", "bytes": 5}
    assert shown(b"{bad") == {"kind": "text", "text": "{bad", "bytes": 4}
    assert shown(b"\x00\x00\x00\x00\x07\x02\xff") == {
        "kind": "bytes",
        "text": "00 00 00 00 07 02 ff",
        "bytes": 7,
    }
    number = (5).to_bytes(8)  # as Kafka's LongSerializer
    assert shown(number) == {"kind": "bytes", "text": "00 00 00 00 00 00 00 05", "bytes": 8}
    binary = shown(b"\xff" * MAX_SHOWN_BYTES)
    assert binary is not None
    assert binary["text"].endswith("ff … (4,096 bytes)")
    # A character of three bytes across the bound: cut, not taken for binary data.
    long = shown(("€" * MAX_SHOWN_BYTES).encode())
    assert long is not None
    assert long["kind"] == "text"
    text = long["text"].removesuffix(" … (12,288 bytes)")
    assert text == "€" * (MAX_SHOWN_BYTES // 3)
    deep = shown(b"[" * MAX_SHOWN_BYTES)
    assert deep is not None
    assert deep["kind"] == "text"


def test_a_page_that_takes_long_or_fails_says_so(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    http = broker.server._http
    assert http is not None
    assert http._content is not None
    console = http._content.console
    assert console is not None

    async def slow(*_: object) -> None:
        await asyncio.sleep(60)

    async def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setitem(console._pages, "groups", slow)
    monkeypatch.setitem(console._pages, "events", broken)
    monkeypatch.setattr("ottla.broker.observability.console.console.PAGE_SECONDS", 0.1)
    status, _, body = get(broker, "/api/groups")
    assert (status, "longer than 0.1 s" in json.loads(body)["error"]) == (503, True)
    status, _, body = get(broker, "/api/events")
    assert (status, "its log has the error" in json.loads(body)["error"]) == (500, True)
    assert "cannot respond to GET /api/events" in caplog.text


def test_without_the_setting_there_is_no_console() -> None:
    with Broker(ottla_metrics_address="127.0.0.1:0") as plain:
        assert get(plain, PREFIX)[0] == 404
        assert get(plain, "/api/overview")[0] == 404
        assert get(plain, "/healthz")[0] == 200


def test_it_costs_nothing_where_it_is_off() -> None:
    """Nothing of it is even imported."""
    code = (
        "import sys\nfrom ottla.broker.testing.embedded import Broker\n"
        "with Broker(ottla_metrics_address='127.0.0.1:0'):\n"
        "    package = 'ottla.broker.observability.console'\n"
        "    print([name for name in sys.modules if name.startswith(package)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.stdout == "[]\n", done.stderr
