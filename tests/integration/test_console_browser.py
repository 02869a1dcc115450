"""The console in a real browser: long names, the keyboard, a broker that dies, records that arrive.

Skipped where there is no Chromium; `make test-console` runs every page of a cluster with traffic.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.observability.console import record_views
from ottla.broker.observability.console.cluster_client import NoResponse
from ottla.protocol.partitioner import partition_for_key
from ottla.testing import Broker
from tests.console.browser import Browser, executable
from tests.console.check import go
from tests.doubles.console_client import ConsoleClient

SECONDS = 60.0
# Nowhere a place to break a line, and as long as names get.
LONG = "W" * 200
GROUP = "g" * 200
PHONE, TABLET, LAPTOP = (375, 740), (768, 1024), (1280, 800)
PAGES = {
    "cluster": "Records appended",
    "topics": "orders",
    f"topic/{LONG}": "Partitions",
    f"records/{LONG}": "scanned",
    "groups": "Behind by",
    f"group/{GROUP}": "Members",
    "events": "Newest first.",
    "security": "SCRAM users",
    "settings": "Settings of broker",
}
# Elements that stick out of the window, and boxes that must be scrolled sideways.
TOO_WIDE = """
[...document.querySelectorAll('main *, header, #trouble, dialog *')].filter((each) => {
  const box = each.getBoundingClientRect()
  return !each.closest('svg') && (box.right > innerWidth + 1
    || (each.matches('.scroll, .panel, dialog') && each.scrollWidth > each.clientWidth + 1))
}).slice(0, 3).map((each) => `${each.tagName}.${each.className} ${each.textContent.slice(0, 40)}`)
"""
# Numbers and times that take more than one line.
WRAPPED = """
[...document.querySelectorAll('td.number, td.when')].filter((each) => {
  // Of the text alone: a link of a phone is higher than its line.
  const texts = document.createTreeWalker(each, NodeFilter.SHOW_TEXT)
  const range = document.createRange()
  let top = Infinity, bottom = -Infinity
  while (texts.nextNode()) {
    range.selectNodeContents(texts.currentNode)
    for (const line of range.getClientRects()) {
      top = Math.min(top, line.top)
      bottom = Math.max(bottom, line.bottom)
    }
  }
  return !each.querySelector('svg, button') && bottom - top > 30
}).slice(0, 3).map((each) => each.textContent)
"""

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no Chromium here (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"ottla_console_enable": True, "ottla_metrics_address": "127.0.0.1:0"}
    with Broker(authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
                super_users="User:ANONYMOUS", **settings) as running:  # fmt: skip
        running.create_topic(LONG, partitions=2)
        running.create_topic("orders", partitions=1)
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for number in range(5):
            producer.produce(LONG, "v" * 300, "k" * 200, headers={"h" * 200: b"x" * 300})
            producer.produce(LONG, json.dumps({"n" * 200: "x" * 300}), bytes(50))
            producer.produce("orders", f"order {number}")
        assert producer.flush(SECONDS) == 0
        yield running


@pytest.fixture(scope="module")
def consumer(broker: Broker) -> Iterator[None]:
    """A member whose ids are as long as they get."""
    settings = {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"}
    ids = {"group.id": GROUP, "client.id": "c" * 200, "group.instance.id": "i" * 200}
    made = Consumer(settings | ids)
    made.subscribe([LONG])
    assert made.consume(3, SECONDS)
    made.commit(asynchronous=False)
    yield
    made.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser(*LAPTOP) as made:
        yield made


@pytest.fixture
def browser(broker: Broker, chromium: Browser) -> Iterator[Browser]:
    """The first page, as a laptop shows it."""
    chromium.resize(*LAPTOP)
    chromium.color_scheme("light")
    chromium.open("about:blank")
    chromium.complaints.clear()
    chromium.open(f"http://127.0.0.1:{broker.server.metrics_port}/console")
    chromium.wait_for("Records appended")
    yield chromium
    assert chromium.complaints == []


@pytest.mark.usefixtures("consumer")
@pytest.mark.parametrize(
    ("size", "scheme"),
    [*itertools.product([PHONE, LAPTOP], ["light", "dark"]), (TABLET, "light")],
)
def test_long_names_fold_on_every_page(
    browser: Browser, size: tuple[int, int], scheme: str
) -> None:
    browser.resize(*size)
    browser.color_scheme(scheme)
    for page, text in PAGES.items():
        go(browser, page, text)
        wide = browser.evaluate("document.documentElement.scrollWidth")
        assert (wide, browser.evaluate(TOO_WIDE)) == (size[0], []), page
        assert browser.evaluate(WRAPPED) == [], page
    for page, opened in ((f"topic/{LONG}", "delete"), (f"group/{GROUP}", "reset")):
        go(browser, page, PAGES[page])
        browser.evaluate(f"document.getElementById('{opened}').click()")
        browser.wait_for(lambda: browser.evaluate("document.querySelector('dialog') !== null"))
        assert browser.evaluate(TOO_WIDE) == [], opened
        browser.press("Escape")


def test_every_page_by_keyboard_alone(browser: Browser) -> None:
    """From the address bar: to a topic, its records, a search in them, and to one record."""

    def tab_to(what: str) -> None:
        for _ in range(60):
            browser.press("Tab")
            if browser.focused() == what:
                outline = "getComputedStyle(document.activeElement).outlineStyle"
                assert browser.evaluate(outline) == "solid"
                return
        raise AssertionError(f"Tab does not reach {what}")

    tab_to("Topics")
    browser.press("Enter")
    browser.wait_for("Create topic")
    browser.press("/")
    browser.write("orders")
    browser.wait_for(lambda: LONG not in browser.text() and "orders" in browser.text())
    tab_to("orders")
    browser.press("Enter")
    browser.wait_for("Partitions")
    tab_to("Browse records")
    browser.press("Enter")
    browser.wait_for("scanned")
    tab_to("browse-value")
    browser.write("order 3")
    browser.press("Enter")
    browser.wait_for("1 record shown")
    tab_to("3")
    browser.press("Enter")
    browser.wait_for("oldest first")
    assert browser.evaluate("location.hash") == "#records/orders?partition=0&offset=3"


def test_a_link_keeps_the_filters(broker: Broker, browser: Browser) -> None:
    base = f"http://127.0.0.1:{broker.server.metrics_port}/console"
    browser.open("about:blank")
    browser.open(f"{base}#records/orders?partition=0&offset=1&value=order+2&view=bytes")
    browser.wait_for("6f 72 64 65 72 20 32")
    assert "1 record shown" in browser.text()
    names = ("partition", "offset", "value", "view")
    fields = [browser.evaluate(f"document.getElementById('browse-{name}').value") for name in names]
    assert fields == ["0", "1", "order 2", "bytes"]
    browser.evaluate("document.getElementById('link').click()")
    shown = "document.getElementById('done').textContent + (document.querySelector('dialog') || {}).textContent"  # noqa: E501
    browser.wait_for(lambda: "without a token" in browser.evaluate(shown)
                     or "It has no token" in browser.evaluate(shown))  # fmt: skip


def test_explanations_need_no_mouse(browser: Browser) -> None:
    """A phone shows no `title`; what is opened stays open when the page is drawn again."""
    browser.resize(*PHONE)
    for page, text in (*PAGES.items(), ("topic/orders?all=1", "retention.ms")):
        go(browser, page, text)
        assert browser.evaluate("document.querySelectorAll('main [title]').length") == 0, page
    go(browser, "settings?search=message.max.bytes", "message.max.bytes")
    hidden = "document.querySelector('main details').innerText"
    before = browser.text()
    browser.evaluate("document.querySelector('main summary').click()")
    opened = browser.text()
    assert len(opened) > len(before) + 30
    drawn = browser.evaluate("document.getElementById('state').textContent")
    browser.wait_for(
        lambda: browser.evaluate("document.getElementById('state').textContent") != drawn
    )
    assert browser.evaluate("document.querySelector('main details').open")
    assert browser.evaluate(hidden) in browser.text()


def test_who_may_use_a_topic_is_on_its_page(broker: Broker, browser: Browser) -> None:
    page = ConsoleClient(broker.server.metrics_port)
    acl = {"principal": "User:bob", "operation": "READ", "resource": "TOPIC", "name": "ord"}
    page.act("acl/create", **acl, pattern="PREFIXED")
    go(browser, "topic/orders", "Who may use this topic")
    browser.wait_for("ord (names that begin so)")
    assert "allowed everything, whatever the ACLs: User:ANONYMOUS" in browser.text()
    go(browser, "security?search=orders-7", "User:bob")
    page.act("acl/delete", **acl, pattern="PREFIXED")
    go(browser, "topic/orders", "only super users are allowed anything")


@pytest.mark.usefixtures("consumer")
def test_groups_are_sorted_by_lag_and_say_what_is_not_counted(
    broker: Broker, browser: Browser
) -> None:
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "without-commits",
                       "enable.auto.commit": False})  # fmt: skip
    member.subscribe(["orders"])
    member.consume(1, 5)
    try:
        go(browser, "groups", "1 partition not counted")
        browser.evaluate("document.getElementById('sort').click()")
        browser.wait_for("By name")
        assert browser.evaluate("location.hash") == "#groups?sort=lag"
        order = "[...document.querySelectorAll('td:first-child')].map((each) => each.textContent)"
        assert browser.evaluate(order) == [GROUP, "without-commits"]
        go(browser, "group/without-commits", "1 partition not counted")
        assert "caught up" not in browser.text()
    finally:
        member.close()


def test_records_arrive_and_are_saved(
    broker: Broker, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    go(browser, "records/orders", "scanned")
    browser.evaluate("document.getElementById('follow').click()")
    browser.wait_for("since following began")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("orders", "just now <b>bold</b>")
    producer.flush(SECONDS)
    browser.wait_for("just now <b>bold</b>")
    assert "follow=1" in browser.evaluate("location.hash")
    # Another page does not follow any more.
    go(browser, "topics", "orders")
    before = len(browser.addresses)
    time.sleep(1.5)
    browser.text()
    assert not any("/api/follow" in each for each in browser.addresses[before + 1 :])

    go(browser, "records/orders?value=order", "scanned")
    browser.evaluate("document.getElementById('download').click()")
    browser.wait_for("5 records saved as JSON lines.")
    deadline = time.monotonic() + SECONDS
    while not (files := list(tmp_path.glob("*.jsonl"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = files[0].read_text().splitlines()
    assert [json.loads(each)["value"] for each in lines] == [f"order {n}" for n in range(5)]
    # What is not in the file is said where it is saved.
    monkeypatch.setattr(record_views, "MAX_WHOLE_BYTES", 6)
    browser.evaluate("document.getElementById('download').click()")
    browser.wait_for("Not whole: 5 keys, values or headers above 1 MiB are left out (35 B)")


def test_following_leaves_what_is_read_where_it_is(broker: Broker, browser: Browser) -> None:
    broker.create_topic("followed", partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def produce(count: int, text: str) -> None:
        for number in range(count):
            producer.produce("followed", f"{text} {number}")
        assert producer.flush(SECONDS) == 0

    produce(30, "old")
    browser.resize(*PHONE)
    go(browser, "records/followed?follow=1", "since following began")
    browser.wait_for("old 0")
    top = (
        "[...document.querySelectorAll('td pre')].find((each) => each.textContent === 'old 20')"
        ".getBoundingClientRect().top"
    )
    browser.evaluate("scrollTo(0, 1200)")
    link = "[...document.querySelectorAll('td a')].find((each) => each.textContent === '19')"
    browser.evaluate(f"{link}.focus({{ preventScroll: true }})")
    before = browser.evaluate(top)
    produce(5, "new")
    browser.wait_for("5 newer records")
    assert "new 4" in browser.text()
    assert abs(browser.evaluate(top) - before) < 2
    assert browser.focused() == "19"
    browser.evaluate("document.activeElement.blur(); document.getElementById('newer').click()")
    assert browser.evaluate("document.getElementById('newer').hidden")
    produce(1, "newest")  # in view, as the newest were asked for
    browser.wait_for("newest 0")
    first = "document.querySelector('tbody td pre').closest('tr').getBoundingClientRect().top"
    assert 0 < browser.evaluate(first) < PHONE[1]
    assert browser.evaluate("document.getElementById('newer').hidden")

    # A deleted topic is not asked for any more.
    page = ConsoleClient(broker.server.metrics_port)
    page.act("topic/delete", name="followed", confirm="followed")
    browser.wait_for("Following has stopped: There is no topic followed.")
    assert "Stop following" not in browser.text()
    assert "newest 0" in browser.text()
    asked = len([each for each in browser.addresses if "/api/follow" in each])
    time.sleep(4)  # more than a pause between two tries
    browser.text()
    assert len([each for each in browser.addresses if "/api/follow" in each]) == asked
    assert any("/api/unfollow" in each for each in browser.addresses)
    browser.complaints.clear()  # the response with 404


def test_an_address_that_leads_nowhere_says_so(browser: Browser) -> None:
    for page, text in {
        "records/orders?partition=99": "Partition orders-99 does not exist.",
        "records/orders?partition=x": "There is no partition x.",
        "settings?broker=99": "There is no broker 99 in the cluster now.",
        "topic/absent": "There is no topic absent.",
        "group/absent": "No broker coordinates a group absent.",
        "topic": "The address names no topic.",
        "nothing": 'There is no page "nothing".',
        "toString": 'There is no page "toString".',
    }.items():
        go(browser, page, text)
        assert "cannot be shown" not in browser.text(), page
    # The form is still there, to choose another one.
    go(browser, "records/orders?partition=99", "does not exist")
    browser.evaluate("document.getElementById('browse-partition').value = '0'")
    browser.evaluate("document.getElementById('browse').click()")
    browser.wait_for("scanned")
    go(browser, "", "Records appended")
    assert all("404" in each for each in browser.complaints), browser.complaints
    browser.complaints.clear()


def test_a_part_that_fails_leaves_the_others(browser: Browser) -> None:
    """As with a field that an older broker does not send, or an error of the console itself."""
    browser.evaluate("""
      const sent = window.fetch
      window.fetch = async (...given) => {
        const response = await sent(...given)
        if (!String(given[0]).startsWith('/api/topic?')) return response
        const found = await response.json()
        return new Response(JSON.stringify({ ...found, rows: [{ partition: 0 }] }))
      }
    """)
    go(browser, "topic/orders", "This part of the page cannot be shown")
    assert "Topic settings" in browser.text()
    assert "None set; broker defaults apply." in browser.text()
    # The whole page, where nothing of it can be made.
    browser.evaluate("window.fetch = async () => new Response('{}')")
    go(browser, "groups", "This page cannot be shown")
    browser.evaluate("setTimeout(() => { throw new Error('broken on purpose') })")
    browser.wait_for("A part of this page failed: broken on purpose")
    assert browser.complaints
    browser.complaints.clear()


def test_a_broker_that_died_dims_its_page(chromium: Browser) -> None:
    settings = {"ottla_console_enable": True, "ottla_metrics_address": "127.0.0.1:0"}
    page = chromium
    with Broker(**settings) as dying:
        dying.create_topic("orders")
        page.open(f"http://127.0.0.1:{dying.server.metrics_port}/console#cluster")
        page.wait_for("All brokers respond")
        go(page, "topic/orders", "Partitions")
        dying.stop()
        opacity = "Number(getComputedStyle(document.querySelector('main')).opacity)"
        page.wait_for("The broker does not respond. The page shows the state of")
        assert page.evaluate(opacity) < 1
        assert "Partitions" in page.text()  # what was known last
        assert page.evaluate("document.title").startswith("! ")
        assert page.evaluate("document.getElementById('state').textContent") == "no response"
        # What was seen of another page stays; one that was not is not mistaken for it.
        page.evaluate("location.hash = '#cluster'")
        page.wait_for("Records appended")
        assert "The page shows the state of" in page.text()
        page.evaluate("location.hash = '#groups'")
        page.wait_for("This page cannot be shown")
        page.evaluate("location.hash = '#topics'")
        # Nor after the next try, when the page is the one that was drawn last.
        page.wait_for(lambda: "Trying again" in page.text())
        time.sleep(4)
        assert "The page shows the state of" not in page.text()
    page.complaints.clear()


def test_the_consoles_of_other_brokers_are_links_in_an_outage(browser: Browser) -> None:
    """Listeners on 127.0.0.1 are those of the machine that serves the page."""
    added = browser.call(
        "Page.addScriptToEvaluateOnNewDocument",
        source="""
          const sent = window.fetch
          const consoles = [
            { id: 1, host: '127.0.0.1', console_host: '', console_port: 10093 },
            { id: 2, host: 'host-2', console_host: '', console_port: 9404 },
            { id: 3, host: 'host-3', console_host: '', console_port: null },
          ]
          window.fetch = async (...given) => (window.isDead ? Promise.reject(new TypeError())
            : String(given[0]).startsWith('/api/consoles')
              ? new Response(JSON.stringify({ consoles })) : sent(...given))
        """,
    )
    browser.evaluate("window.isOld = true; location.reload()")
    browser.wait_for(lambda: not browser.evaluate("window.isOld"))
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])
    browser.wait_for("Records appended")
    browser.evaluate("window.isDead = true")
    browser.wait_for("The consoles of other brokers show the same cluster")
    links = "[...document.querySelectorAll('#trouble a')].map((each) => each.href)"
    base = browser.evaluate("location.hostname")
    assert browser.evaluate(links) == [
        f"http://{base}:10093/console", "http://host-2:9404/console",
    ]  # fmt: skip
    assert "broker 3 on host-3, at the HTTP port that its start printed" in browser.text()


def test_a_list_of_partitions_on_a_phone(broker: Broker, browser: Browser) -> None:
    broker.create_topic("wide", partitions=120)
    browser.resize(*PHONE)
    go(browser, "topic/wide", "of 120")
    low = (
        "[...document.querySelectorAll('.pager a')]"
        ".some((each) => each.getBoundingClientRect().height < 24)"
    )
    assert not browser.evaluate(low)
    browser.evaluate("document.getElementById('to-topic-settings').click()")
    top = "document.getElementById('topic-settings').getBoundingClientRect().top"
    assert 0 < browser.evaluate(top) < PHONE[1]
    # The next page begins with its first row.
    browser.evaluate("[...document.querySelectorAll('.pager a')].at(-2).click()")
    browser.wait_for("\n119\n")
    top = "document.querySelector('.pager').closest('.panel').getBoundingClientRect().top"
    browser.wait_for(lambda: 0 < browser.evaluate(top) < PHONE[1] / 2)
    browser.evaluate("location.hash = '#records/wide'")
    browser.wait_for("scanned")


def test_a_time_without_a_time_is_not_the_newest(broker: Broker, browser: Browser) -> None:
    go(browser, f"records/{LONG}", "scanned")
    browser.evaluate("document.getElementById('browse-from').value = 'time'")
    browser.evaluate("document.getElementById('browse').click()")
    browser.wait_for("Choose a time.")
    browser.evaluate("document.getElementById('browse-from').value = 'offset'")
    browser.evaluate("document.getElementById('browse').click()")
    browser.wait_for("Enter an offset.")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    broker.create_topic("older", partitions=2)
    for number in range(240):
        producer.produce("older", f"{number}", partition=number % 2)
    assert producer.flush(SECONDS) == 0
    go(browser, "records/older", "For older records choose one partition, an offset or a time.")


def test_the_dry_run_of_a_reset_begins_with_its_title_and_says_what_is_skipped(
    broker: Broker, browser: Browser
) -> None:
    broker.create_topic("skipped", partitions=60)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "skips"})
    for index in range(60):
        producer.produce("skipped", "x", partition=index)
    assert producer.flush(SECONDS) == 0
    member.commit(offsets=[TopicPartition("skipped", index, 0) for index in range(60)],
                  asynchronous=False)  # fmt: skip
    browser.resize(*PHONE)
    go(browser, "group/skips", "Offsets")
    browser.wait_for("no members")
    browser.evaluate("document.getElementById('reset').click()")
    browser.evaluate("document.getElementById('field-to').value = 'latest'")
    browser.evaluate("document.getElementById('submit').click()")
    browser.wait_for("Dry run: skips")
    assert browser.evaluate("document.querySelector('dialog').scrollTop") == 0
    assert "Offsets of all topics with committed offsets: the end." in browser.text()
    assert "skips up to 60 records" in browser.text()
    browser.press("Escape")

    member.commit(offsets=[TopicPartition("skipped", index, 1) for index in range(60)],
                  asynchronous=False)  # fmt: skip
    member.close()

    def plan(to: str, amount: str) -> None:
        browser.evaluate("document.getElementById('reset').click()")
        browser.evaluate(f"document.getElementById('field-to').value = '{to}'")
        browser.evaluate(f"document.getElementById('field-amount').value = '{amount}'")
        browser.evaluate("document.getElementById('submit').click()")

    # Nothing is not 0.
    for to, said in (("offset", "Enter an offset."), ("shift", "Enter a number.")):
        plan(to, "")
        browser.wait_for(said)
        browser.press("Escape")
    plan("offset", "0")
    browser.wait_for("Up to 60 records that the group has committed are read and processed again")
    browser.press("Escape")
    plan("offset", "500")
    browser.wait_for("60 partitions have no such offset")
    browser.press("Escape")


def test_records_stay_while_the_bars_of_a_phone_move(browser: Browser) -> None:
    """Its window changes in height with each scroll; records are not requested again for that, nor
    when it is turned: only charts have a width."""
    browser.resize(*PHONE)
    go(browser, "records/orders", "scanned")

    def asked() -> int:
        browser.text()
        return len([each for each in browser.addresses if "/api/messages" in each])

    before = asked()
    browser.resize(PHONE[0], PHONE[1] - 60)
    time.sleep(1)
    assert asked() == before
    browser.resize(PHONE[1], PHONE[0])  # turned
    time.sleep(1)
    assert asked() == before


def test_a_wrong_token_is_sent_once(chromium: Browser) -> None:
    token = "a-token-of-a-test"
    page = chromium
    with Broker(ottla_console_enable=True, ottla_metrics_address="127.0.0.1:0",
                ottla_console_token=token) as broker:  # fmt: skip
        base = f"http://127.0.0.1:{broker.server.metrics_port}/console"
        page.open("about:blank")
        page.open(f"{base}#token=a-wrong-token-of-a-test")
        page.wait_for("The broker refused this token")

        def sent() -> int:
            return len([each for each in page.addresses if each.startswith(f"{base[:-7]}api/")])

        assert page.evaluate("sessionStorage.getItem('token')") is None
        before = sent()
        page.evaluate("document.activeElement.blur()")
        time.sleep(4)  # more than the page waits between two requests
        page.text()
        assert (sent(), before) == (before, 1)
        page.evaluate(f"document.getElementById('token').value = ' {token} '")
        page.evaluate("document.querySelector('form button').click()")
        page.wait_for("Records appended")
        page.wait_for(lambda: page.text() and sent() > before + 1)  # drawn again by itself

        # A dialog keeps what was typed when the token is not valid any more.
        go(page, "topics", "Create topic")
        page.evaluate("document.getElementById('create').click()")
        page.evaluate("document.getElementById('field-name').value = 'kept'")
        page.evaluate("sessionStorage.setItem('token', 'an-old-token-of-a-test')")
        page.evaluate("document.getElementById('submit').click()")
        page.wait_for("enter it here")
        assert page.evaluate("document.getElementById('field-name').value") == "kept"
        page.evaluate(f"document.getElementById('dialog-token').value = '{token}'")
        page.evaluate("document.getElementById('submit').click()")
        page.wait_for("Topic kept is created.")
    page.complaints.clear()


def test_what_a_broken_broker_answers_is_shown(broker: Broker, browser: Browser) -> None:
    console = broker.server._http._content.console  # type: ignore[union-attr]

    async def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    go(browser, "groups", "Groups")
    kept = console._pages["groups"]
    console._pages["groups"] = broken
    try:
        browser.wait_for("its log has the error")
        assert browser.evaluate("document.body.className") == "stale"
    finally:
        console._pages["groups"] = kept
    browser.wait_for(lambda: browser.evaluate("document.body.className") == "")
    browser.complaints.clear()  # the responses with 500


def test_records_that_could_not_be_requested_are_requested_again(
    broker: Broker, browser: Browser
) -> None:
    """The page of records is not drawn again by itself, but it says "Trying again"."""
    console = broker.server._http._content.console  # type: ignore[union-attr]
    failures = ["once"]
    kept = console._pages["messages"]

    async def failing(*given: Any) -> Any:
        if failures.pop() if failures else None:
            raise NoResponse("Broker 0 did not respond: on purpose.")
        return await kept(*given)

    go(browser, "records/orders", "scanned")
    console._pages["messages"] = failing
    try:
        browser.evaluate("document.getElementById('browse-value').value = 'order 3'")
        browser.evaluate("document.getElementById('browse').click()")
        browser.wait_for("1 record shown")
        assert not failures
    finally:
        console._pages["messages"] = kept
    browser.complaints.clear()  # the response with 503


def test_typing_in_a_search_while_responses_arrive(browser: Browser) -> None:
    """Each response was requested with fewer letters than there are when it arrives."""
    browser.evaluate("""
      const sent = window.fetch
      window.fetch = async (...given) => {
        await new Promise((done) => setTimeout(done, 150))
        return sent(...given)
      }
    """)
    for page, text in (("topics", "orders"), ("events", "Newest first"), ("settings", "log.dirs")):
        go(browser, page, text)
        browser.evaluate("document.getElementById('search').focus()")
        drawn = "document.querySelector('main .heading').nextSibling.isMarked = true"
        browser.evaluate(drawn)
        for number, letter in enumerate("abcdefghijkl"):
            browser.write(letter)
            time.sleep((0.1, 0.25, 0.4)[number % 3])
        found = "[document.getElementById('search').value, document.activeElement.selectionStart]"
        assert browser.evaluate(found) == ["abcdefghijkl", 12], page
        # The page has been drawn meanwhile, and the address has all letters.
        assert not browser.evaluate("document.querySelector('main .heading').nextSibling.isMarked")
        browser.wait_for(lambda: browser.evaluate("location.hash").endswith("search=abcdefghijkl"))


def test_back_closes_a_dialog_alone(browser: Browser) -> None:
    go(browser, "topic/orders", "Partitions")
    go(browser, f"topic/{LONG}", "Partitions")
    browser.evaluate("document.getElementById('delete').focus()")
    browser.press("Enter")
    browser.wait_for("This cannot be undone")
    browser.evaluate("history.back()")
    browser.wait_for(lambda: browser.evaluate("document.querySelector('dialog')") is None)
    assert browser.evaluate("location.hash") == f"#topic/{LONG}"
    assert LONG in browser.text()
    assert browser.focused() == "delete"
    browser.evaluate("history.back()")
    browser.wait_for(lambda: LONG not in browser.text() and "Partitions" in browser.text())
    # The same button of another topic is not what had the focus.
    assert browser.evaluate("document.activeElement === document.body")


def test_a_record_without_a_key_has_none(broker: Broker, browser: Browser) -> None:
    broker.create_topic("keys", partitions=3)
    page = ConsoleClient(broker.server.metrics_port)

    def produce(key: str, kind: str = "typed") -> dict[str, Any]:
        go(browser, "topic/keys", "Partitions")
        browser.evaluate("document.getElementById('produce').click()")
        browser.write(f"with {key}")
        for name, value in (("key", key), ("keyKind", kind)):
            browser.evaluate(f"document.getElementById('field-{name}').value = '{value}'")
        browser.evaluate("document.getElementById('submit').click()")
        browser.wait_for(lambda: browser.evaluate("document.querySelector('dialog')") is None)
        rows = page.get("messages?topic=keys&value=with")["records"]
        return next(row for row in rows if row["value"]["text"] == f"with {key}")

    # As the producers of Java do.
    key = "some"
    assert produce(key)["partition"] == partition_for_key(key.encode(), 3)
    assert produce("")["key"] is None
    page.act("record/produce", topic="keys", partition=1, key="", value="empty")
    go(browser, "records/keys?value=empty", "1 record shown")
    assert "(empty)" in browser.text()


def test_a_device_that_is_offline_says_so(browser: Browser) -> None:
    go(browser, "topic/orders", "Partitions")
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.call("Network.emulateNetworkConditions", offline=True, **network)
    try:
        browser.wait_for("This device is offline. The page shows the state of")
        assert "consoles of other brokers" not in browser.text()
    finally:
        browser.call("Network.emulateNetworkConditions", offline=False, **network)
    browser.wait_for(lambda: browser.evaluate("document.body.className") == "")
    browser.complaints.clear()  # the requests that failed


def test_the_clock_of_a_page_that_follows_goes_on(browser: Browser) -> None:
    go(browser, "records/orders?follow=1", "since following began")
    shown = "document.getElementById('state').textContent"
    before = browser.evaluate(shown)
    browser.wait_for(lambda: browser.evaluate(shown) != before)


def test_a_page_that_takes_long_says_that_it_is_loading(broker: Broker, browser: Browser) -> None:
    console = broker.server._http._content.console  # type: ignore[union-attr]
    kept = console._pages["messages"]
    go(browser, "records/orders", "scanned")
    released = threading.Event()

    async def slow(*given: Any) -> Any:
        await asyncio.to_thread(released.wait, SECONDS)
        return await kept(*given)

    console._pages["messages"] = slow
    try:
        browser.evaluate("document.getElementById('browse').click()")  # with the same search
        browser.wait_for("loading…")
        assert browser.evaluate("document.body.className") == "loading"
    finally:
        released.set()
        console._pages["messages"] = kept
    browser.wait_for(lambda: browser.evaluate("document.body.className") == "")
    assert "loading…" not in browser.text()


def test_back_leads_to_where_one_was(broker: Broker, browser: Browser) -> None:
    for number in range(40):
        broker.create_topic(f"many-{number:02}", partitions=1)
    browser.resize(*PHONE)
    go(browser, "topics?search=many-", "many-39")
    browser.evaluate("scrollTo(0, 700)")
    browser.wait_for(lambda: browser.evaluate("scrollY") == 700)
    browser.evaluate("location.hash = '#topic/many-20'")
    browser.wait_for("Partitions")
    browser.wait_for(lambda: browser.evaluate("scrollY") == 0)
    browser.evaluate("history.back()")
    browser.wait_for(lambda: "many-39" in browser.text() and browser.evaluate("scrollY") == 700)


def test_small_stumbles(broker: Broker, browser: Browser) -> None:
    broker.create_topic("long", partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(1200):
        producer.produce("long", f"{number}")
    assert producer.flush(SECONDS) == 0
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reads-long"})
    member.commit(offsets=[TopicPartition("long", 0, 7)], asynchronous=False)
    member.close()
    go(browser, "records/long?partition=0", "scanned")
    browser.evaluate("document.getElementById('browse-from').value = 'offset'")
    browser.evaluate("document.getElementById('browse-offset').value = '1,000'")
    browser.evaluate("document.getElementById('browse').click()")
    browser.wait_for("oldest first")
    assert browser.evaluate("location.hash").endswith("offset=1000")
    links = "[...document.querySelectorAll('a')].map((each) => each.textContent.slice(0, 12))"
    assert browser.evaluate(links).count("next records") == 2  # also behind the last record
    go(browser, "records/long?partition=0&offset=5000", "beyond the end, which is 1,200")
    go(browser, "group/reads-long", "Offsets")
    browser.evaluate("document.getElementById('delete').click()")
    browser.wait_for("1 committed offset of 1 topic is deleted")
    browser.press("Escape")
    go(browser, "topic/long", "Partitions")
    browser.evaluate("document.getElementById('delete').click()")
    browser.wait_for("All its records (1,200) are deleted")
    browser.wait_for("1 group loses its committed offsets in it:")
    assert "reads-long (disappears: it has no others)" in browser.text()
    browser.write("short")
    browser.press("Enter")
    browser.wait_for("The name does not match: type long.")
    browser.press("Escape")


@pytest.mark.usefixtures("consumer")
def test_what_is_not_known_of_a_lag_is_a_gap_in_its_chart(browser: Browser) -> None:
    browser.evaluate("""
      const sent = window.fetch
      const now = Date.now()
      const lag = [[now - 15000, 9], [now - 10000, 8], [now - 5000, null], [now, 7]]
      const pace = { committed: 5, appended: 1, catch_up_seconds: 2400 }
      const more = { lag, pace, records: 7, members: 1, lag_seconds: 60, uncounted: 3 }
      window.fetch = async (...given) => {
        const response = await sent(...given)
        if (!String(given[0]).startsWith('/api/group?')) return response
        return new Response(JSON.stringify({ ...await response.json(), ...more }))
      }
    """)
    go(browser, f"group/{GROUP}", "Members")
    # The line before the gap and the point behind it.
    assert browser.evaluate("document.querySelectorAll('.chart polyline').length") == 2
    cards = "[...document.querySelectorAll('.card')].at(-1).innerText"
    assert browser.evaluate(cards).split("\n") == [
        "No lag in", "unknown", "3 partitions not counted",
    ]  # fmt: skip
