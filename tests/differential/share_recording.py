"""The share group conversations with Apache Kafka 4.3.1 and with Ottla, compared line by line.

    python -m tests.differential.share_recording [--record] [--only NAME...]

Both brokers are started. With `--record` what Kafka said is written to `share_responses.json`, with
which CI compares Ottla (test_share_groups.py); that leaves out the slow conversations. Exit
code 1 where the two differ.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.differential import share_access_scripts, share_scripts, share_trouble_scripts
from tests.differential.share_scripts import LOCK_MS, Script, prepare
from tests.differential.share_trouble_scripts import SLOW_SCRIPTS
from tests.doubles.broker_process import start_broker
from tests.doubles.kraft_kafka import VERSION, start_kraft
from tests.doubles.transcript import Transcript

RESPONSES = Path(__file__).with_name("share_responses.json")
# Settings of both brokers, and those of either.
COMMON = {
    "group_share_min_record_lock_duration_ms": LOCK_MS,
    "allow_everyone_if_no_acl_found": "true",
}
KAFKA = {
    **COMMON,
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
OTTLA = {
    **COMMON,
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
    "group_coordinator_rebalance_protocols": "classic,consumer,share",
}


#: Of both brokers: the share coordinator appends late.
SLOW: dict[str, Any] = {
    "share_coordinator_append_linger_ms": share_trouble_scripts.WRITE_MS,
    "share_coordinator_write_timeout_ms": 30_000,
}
SCRIPTS: tuple[Script, ...] = (
    *share_scripts.SCRIPTS,
    *share_access_scripts.SCRIPTS,
    *share_trouble_scripts.SCRIPTS,
)

_EPOCHS = re.compile(r"group_epoch=([2-9]|\d\d+), assignment_epoch=\d+")


def hold(bootstrap: str, scripts: Sequence[Script] = SCRIPTS) -> dict[str, list[str]]:
    """Conversations with one new broker, by name."""
    with Transcript(bootstrap) as transcript:
        prepare(transcript)
    found = {}
    for script in scripts:
        with Transcript(bootstrap) as transcript:
            script(transcript)
            # Kafka has a message for other errors than Ottla; the codes are compared. It counts
            # the initialization of partitions, how often depends on the time that takes.
            found[script.__name__] = [
                _EPOCHS.sub("epochs=N", line.replace("error_message=TEXT", "error_message=None"))
                for line in transcript.lines
            ]
    return found


def differences(kafka: dict[str, list[str]], ottla: dict[str, list[str]]) -> list[str]:
    """A diff with the headline before each change."""
    return [
        line.rstrip()
        for name in kafka
        for line in difflib.unified_diff(
            kafka[name], ottla[name], f"Kafka: {name}", f"Ottla: {name}", n=2
        )
    ]


def with_both(
    scripts: Sequence[Script], settings: dict[str, Any]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The conversations with Apache Kafka and with Ottla."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with start_kraft(directory / "kafka", **KAFKA, **settings) as bootstrap:
            kafka = hold(bootstrap, scripts)
        with start_broker(directory / "ottla", broker_id=1, **OTTLA, **settings) as broker:
            return kafka, hold(broker.bootstrap, scripts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write share_responses.json")
    parser.add_argument("--only", nargs="*", help="the names of conversations")
    arguments = parser.parse_args()
    names = arguments.only
    scripts = [each for each in SCRIPTS if not names or each.__name__ in names]
    slow = [each for each in SLOW_SCRIPTS if not names or each.__name__ in names]
    kafka, ottla = with_both(scripts, {}) if scripts else ({}, {})
    if arguments.record:
        known = json.loads(RESPONSES.read_text(encoding="ascii")) if names else {}
        RESPONSES.write_text(json.dumps(known | kafka, indent=1) + "\n", encoding="ascii")
    found = differences(kafka, ottla)
    if slow:
        found += differences(*with_both(slow, SLOW))
    print("\n".join(found) or f"the same responses as Apache Kafka {VERSION}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
