"""The console of a cluster in headless Chromium, with real traffic: `make test-console`.

`--screenshots DIRECTORY` writes the pictures of docs/console.md (`make console-screenshots`). Exit
code 0 if all checks pass, 1 if not, 2 when this machine has no Chromium ("not run").
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Topic

from ottla.testing import Cluster
from tests.console.browser import Browser, executable

# A phone as people have it, and a common laptop.
PHONE = (375, 740)
LAPTOP = (1180, 760)
TOPICS = ("orders", "payments", "page-views")
# More than one page of the list.
MORE_TOPICS = 120
EVIL = "<img src=x onerror=\"document.title='broken in'\">"
PAGES = {
    "cluster": "Records appended",
    "topics": "orders",
    "topic/orders": "Partitions",
    "records/orders": "scanned",
    "groups": "billing",
    "group/billing": "Members",
    "group/workers": "oldest lock",
    "events": "broker 1",
    "security": "SCRAM users",
    "settings": "Settings of broker 1",
}
# What is lower than 24 pixels (WCAG 2.2, target size); a link in a sentence may be.
SMALL_LINKS = """
[...document.querySelectorAll('main td a, main h2 a, main button, main select, main input')]
  .filter((each) => each.offsetParent && each.getBoundingClientRect().height < 24)
  .map((each) => each.textContent || each.name)
"""
TIME_WIDTH = 250
# Of charts that are worth a picture.
POINTS = 9


class Traffic:
    """A producer, a group of two members and a share group of one, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce),
            *(threading.Thread(target=self._consume, args=(number,)) for number in (1, 2)),
            threading.Thread(target=self._share),
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "compression.type": "zstd"})
        number = 0
        while not self._stopped.wait(0.1):
            for _ in range(40 + number * 7 % 90):
                number += 1
                value = {"order": number, "customer": f"Zoë {number % 7}", "total": number % 97}
                if number % 50 == 0:
                    value["note"] = EVIL
                topic = TOPICS[number % len(TOPICS)]
                producer.produce(topic, json.dumps(value), f"k{number % 500}", headers={"v": b"1"})
            producer.flush(10)

    def _share(self) -> None:
        """Takes records of one topic; each poll accepts those of the one before."""
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "workers", "log_level": 0}
        consumer = ShareConsumer(settings)
        consumer.subscribe([TOPICS[0]])
        while not self._stopped.is_set():
            consumer.poll(0.5)
        consumer.close()

    def _consume(self, number: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "billing",
                "client.id": f"billing-{number}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 1000,
            }
        )
        consumer.subscribe(["orders", "payments"])
        while not self._stopped.is_set():
            consumer.consume(120, 0.5)
        consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def go(browser: Browser, page: str, text: str) -> None:
    """To a page, until it says something. Pages that were drawn before are gone then."""
    # It is drawn once: a second time would take what a test has typed meanwhile.
    browser.evaluate(
        "document.getElementById('page').replaceChildren();"
        f"{{ const before = location.href; location.hash = '#{page}';"
        "if (location.href === before) dispatchEvent(new HashChangeEvent('hashchange')) }"
    )
    browser.wait_for(text)


def check_pages(browser: Browser) -> None:
    """Each page shows what it should, and nothing in it is taken for markup."""
    for page, text in PAGES.items():
        go(browser, page, text)
    go(browser, "records/orders?value=onerror", "onerror")
    assert browser.evaluate("document.title") != "broken in"
    assert browser.evaluate("document.querySelectorAll('main img').length") == 0
    go(browser, "topic/no-such-topic", "There is no topic no-such-topic.")
    go(browser, "settings?search=ssl.keystore.password", "(hidden)")
    assert "top-secret" not in browser.text()
    go(browser, "cluster", "All brokers respond")
    browser.wait_for(
        lambda: browser.evaluate("document.querySelectorAll('.chart svg').length") == 3
    )
    axis = browser.evaluate("document.querySelector('.chart svg').textContent")
    assert "/s" in axis, axis
    before = browser.evaluate("document.getElementById('state').textContent")
    browser.wait_for(  # drawn again by itself
        lambda: browser.evaluate("document.getElementById('state').textContent") != before
    )


def check_search(browser: Browser) -> None:
    """Search begins on the first page, and the address keeps it."""
    go(browser, "topics?first=100", "of 12")
    browser.press("/")
    assert browser.focused() == "search"
    browser.write("page-v")
    browser.wait_for(lambda: "page-views" in browser.text() and "orders" not in browser.text())
    assert browser.focused() == "search"  # also when the page is drawn again
    assert "first" not in browser.evaluate("location.hash")
    browser.press("Escape")
    browser.wait_for("orders")


def check_keyboard(browser: Browser) -> None:
    """Everything is reached by Tab in the order of the page, and its focus can be seen."""
    go(browser, "topics", "orders")
    browser.evaluate("document.activeElement.blur(); document.getElementById('skip').focus()")
    order = []
    for _ in range(9):
        browser.press("Tab")
        order.append(browser.focused())
    tabs = ["Cluster", "Topics", "Groups", "Events", "Security", "Settings"]
    assert order[:9] == [*tabs, "search", "only", "create"], order
    browser.evaluate("document.getElementById('create').focus()")
    browser.press("Enter")
    browser.wait_for("Create a topic")
    assert browser.focused() == "field-name"
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Escape")
    browser.wait_for(lambda: not browser.evaluate("document.querySelector('dialog')"))
    assert browser.focused() == "create"


def check_changes(browser: Browser) -> None:
    """A topic from its form to its deletion; offsets by a dry run; an ACL and a user."""
    go(browser, "topics", "orders")
    browser.evaluate("document.getElementById('create').click()")
    browser.write("made")
    browser.evaluate("document.getElementById('field-partitions').value = '2'")
    browser.press("Enter")
    browser.wait_for("Topic made is created.")
    go(browser, "topic/made", "Partitions")
    browser.evaluate("document.getElementById('produce').click()")
    browser.write("by hand")
    browser.evaluate("document.getElementById('submit').click()")
    browser.wait_for("Produced to made-")
    go(browser, "records/made", "by hand")
    go(browser, "topic/made", "Partitions")
    browser.evaluate("document.getElementById('delete').click()")
    browser.write("mad")
    browser.press("Enter")
    browser.wait_for("type made")
    browser.write("e")
    browser.press("Enter")
    browser.wait_for("Topic made is deleted.")
    browser.wait_for(lambda: browser.evaluate("location.hash") == "#topics")

    go(browser, "group/idle", "Offsets")
    browser.evaluate("document.getElementById('reset').click()")
    browser.wait_for("Nothing is changed yet")
    browser.evaluate("document.getElementById('submit').click()")
    browser.wait_for("Dry run: idle")
    browser.evaluate("document.getElementById('submit').click()")
    browser.wait_for("offsets of group idle are reset.")

    go(browser, "security", "SCRAM users")
    browser.evaluate("document.getElementById('add-acl').click()")
    browser.evaluate("document.getElementById('field-principal').value = 'User:alice'")
    browser.evaluate("document.getElementById('field-name').value = 'orders'")
    browser.evaluate("document.getElementById('submit').click()")
    browser.wait_for("The ACL of User:alice is added.")
    browser.wait_for(lambda: browser.evaluate("document.querySelector('dialog')") is None)
    browser.evaluate("document.getElementById('add-user').click()")
    browser.evaluate("document.getElementById('field-user').value = 'alice'")
    browser.evaluate("document.getElementById('field-password').value = 'a long password'")
    browser.evaluate("document.getElementById('submit').click()")
    browser.wait_for("User alice can log in with SCRAM-SHA-512.")


def check_width(browser: Browser) -> None:
    """No page is wider than a phone, in light and in dark."""
    browser.resize(*PHONE)
    for scheme in ("light", "dark"):
        browser.color_scheme(scheme)
        for page, text in PAGES.items():
            go(browser, page, text)
            wide = browser.evaluate("document.documentElement.scrollWidth")
            assert wide <= PHONE[0], f"{page} is {wide} pixels wide"
            small = browser.evaluate(SMALL_LINKS)
            assert not small, f"{page}: too small for a finger: {small}"
    go(browser, "records/orders", PAGES["records/orders"])
    width = browser.evaluate("document.querySelector('[type=datetime-local]').clientWidth")
    assert width >= TIME_WIDTH, f"the field of a time is {width} pixels wide"
    back = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, back[4:-1].split(","))) < 60, back


def pictures(browser: Browser, directory: Path) -> None:
    """The pictures of the documentation, when the charts have some length."""
    browser.resize(*LAPTOP)
    browser.color_scheme("light")
    points = "document.querySelector('svg polyline')?.getAttribute('points').split(' ').length"
    go(browser, "cluster", "All brokers respond")
    browser.wait_for(lambda: (browser.evaluate(points) or 0) >= POINTS)
    for name, page, text in (
        ("console", "cluster", "All brokers respond"),
        ("console-topic", "topic/orders", "Partitions"),
        ("console-records", "records/orders?value=%22customer%22&partition=1", "scanned"),
        ("console-group", "group/billing", "Members"),
    ):
        go(browser, page, text)
        browser.screenshot(directory / f"{name}.png")
    browser.resize(*PHONE)
    browser.color_scheme("dark")
    go(browser, "cluster", "All brokers respond")
    browser.screenshot(directory / "console-phone.png")


def prepare(cluster: Cluster) -> None:
    """Topics for pages of the list, and a group without members."""
    for name in TOPICS:
        cluster.create_topic(name, partitions=6)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = [Topic(f"zone-{number:03}", 1, 1) for number in range(MORE_TOPICS)]
    for future in admin.create_topics(topics).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("orders", b"{}")
    producer.flush(60)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "idle",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    assert consumer.consume(1, 60)
    consumer.commit(asynchronous=False)
    consumer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screenshots", type=Path)
    chosen = parser.parse_args()
    if executable() is None:
        print("not run: no chromium here (Debian: apt-get install chromium)")
        return 2
    logging.getLogger("ottla").setLevel(logging.INFO)  # as `ottla start` does
    settings = {
        "ottla_console_enable": True,
        "ottla_metrics_address": "127.0.0.1:0",
        "ssl_keystore_password": "top-secret",
        "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        "super_users": "User:ANONYMOUS",
        "group_coordinator_rebalance_protocols": "classic,consumer,share",
    }
    with Cluster(brokers=3, **settings) as cluster, Browser(*LAPTOP) as browser:
        base = f"http://127.0.0.1:{cluster[1].server.metrics_port}"
        if chosen.screenshots is None:
            prepare(cluster)
        else:
            for name in TOPICS:
                cluster.create_topic(name, partitions=6)
        traffic = Traffic(cluster.bootstrap)
        try:
            browser.open(f"{base}/console")
            browser.wait_for("Records appended")
            if chosen.screenshots is not None:
                pictures(browser, chosen.screenshots)
                return 0
            browser.wait_for(lambda: go(browser, "groups", "billing") is None)
            for check in (check_pages, check_search, check_keyboard, check_changes, check_width):
                started = time.monotonic()
                check(browser)
                print(f"{check.__name__}: {time.monotonic() - started:.1f} s", flush=True)
        finally:
            traffic.stop()
        foreign = [address for address in browser.addresses if not address.startswith(
            (base, "data:", "about:"))]  # fmt: skip
        assert not foreign, foreign
        refused = ("404", "400")  # what the checks provoke
        complaints = [each for each in browser.complaints if not any(c in each for c in refused)]
        assert not complaints, complaints
    print(f"the console works in Chromium: {len(PAGES)} pages, live, escaped, {PHONE[0]} px wide")
    return 0


if __name__ == "__main__":
    sys.exit(main())
