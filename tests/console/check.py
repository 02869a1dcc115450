"""The console in headless Chromium with real traffic behind it: `make test-console`.

`--screenshot FILE` keeps a picture for the README. Exit code 0 if all checks pass, 1 if not,
2 when this machine has no Chromium ("not run").
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer

from ottla.broker.testing.embedded import Broker
from tests.console.browser import Browser, executable

# The narrowest phone in use, and a common laptop.
PHONE = (360, 740)
LAPTOP = (1180, 700)
TOPICS = ("orders", "payments", "page-views")
EVIL = "<img src=x onerror=\"document.title='broken in'\">"


class Traffic:
    """A producer and a slow group, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=target) for target in (self._produce, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "compression.type": "zstd"})
        number = 0
        while not self._stopped.wait(0.1):
            for _ in range(20 + number % 300):
                number += 1
                value = {"number": number, "customer": f"Zoë {number % 7}", "note": EVIL}
                topic = TOPICS[number % len(TOPICS)]
                producer.produce(topic, json.dumps(value), f"k{number % 50}", headers={"v": b"1"})
            producer.flush(10)

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "billing",
                "client.id": "billing-1",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["orders"])
        while not self._stopped.is_set():
            consumer.consume(40, 0.5)
        consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def check(browser: Browser, base: str) -> None:
    """Every page shows what it should, live, and nothing in it is taken for markup."""
    browser.open(f"{base}/console")
    browser.wait_for("controller")
    browser.wait_for("Traffic of this broker")
    first = browser.text()
    browser.wait_for(lambda: browser.text() != first)  # refreshed automatically
    browser.evaluate("location.hash = '#topics'")
    browser.wait_for("page-views")
    browser.evaluate("location.hash = '#topic/orders'")
    browser.wait_for("look inside")
    browser.evaluate("location.hash = '#messages/orders/0'")
    browser.wait_for("onerror=")
    browser.wait_for("Zoë")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.title") == "Ottla"
    browser.evaluate("location.hash = '#groups'")
    browser.wait_for("billing")
    browser.evaluate("location.hash = '#group/billing'")
    browser.wait_for("billing-1")
    browser.wait_for("What happened")
    browser.evaluate("location.hash = '#events'")
    browser.wait_for("is the controller")
    browser.evaluate("location.hash = '#settings'")
    browser.wait_for("(hidden)")
    assert "top-secret" not in browser.text()
    browser.evaluate("location.hash = '#topic/no-such-topic'")
    browser.wait_for("There is no topic no-such-topic.")


def check_width(browser: Browser) -> None:
    """No page is wider than a phone."""
    for page in ("cluster", "topics", "topic/orders", "messages/orders/0", "groups",
                 "group/billing", "events", "settings"):  # fmt: skip
        browser.evaluate(f"location.hash = '#{page}'")
        browser.wait_for(lambda: browser.evaluate("document.querySelector('main table') !== null"))
        time.sleep(0.3)  # the page of before may still be there
        wide = browser.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE[0], f"{page} is {wide} pixels wide"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screenshot", type=Path)
    chosen = parser.parse_args()
    if executable() is None:
        print("not run: no chromium here (Debian: apt-get install chromium)")
        return 2
    logging.getLogger("ottla").setLevel(logging.INFO)  # as `ottla start` does
    with (
        tempfile.TemporaryDirectory() as directory,
        Broker(
            directory,
            num_partitions=2,
            ottla_console_enable=True,
            ottla_metrics_address="127.0.0.1:0",
            ssl_keystore_password="top-secret",
        ) as broker,
        Browser(*LAPTOP) as browser,
    ):
        traffic = Traffic(broker.bootstrap)
        try:
            base = f"http://127.0.0.1:{broker.server.metrics_port}"
            check(browser, base)
            foreign = [address for address in browser.addresses if not address.startswith(
                (base, "data:", "about:"))]  # fmt: skip
            assert not foreign, foreign
            if chosen.screenshot:
                picture(browser, chosen.screenshot)
            browser.resize(*PHONE)
            check_width(browser)
            if chosen.screenshot:
                browser.evaluate("location.hash = '#groups'")
                time.sleep(1)
                browser.screenshot(chosen.screenshot.with_stem(f"{chosen.screenshot.stem}-phone"))
        finally:
            traffic.stop()
        complaints = [each for each in browser.complaints if "404" not in each]
        assert not complaints, complaints
    print("the console works in Chromium: 8 pages, live, escaped, 360 pixels wide")
    return 0


def picture(browser: Browser, path: Path) -> None:
    """The first page once its lines have some length."""
    browser.evaluate("location.hash = '#cluster'")
    points = "document.querySelector('svg polyline')?.getAttribute('points').split(' ').length"
    browser.wait_for(lambda: (browser.evaluate(points) or 0) > 8)
    browser.screenshot(path)


if __name__ == "__main__":
    sys.exit(main())
