"""docs/kafka-tests.md: what passes of Kafka's own tests by class, and the reasons of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from tests.compat.kafka_tests.jars import FOLDER
from tests.compat.kafka_tests.results import (
    FAILED,
    PASSED,
    Result,
    first_line,
    read_reasons,
    reason_for,
)
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY

PAGE = REPOSITORY / "docs" / "kafka-tests.md"

_HEAD = f"""# Kafka's own broker tests

The test jar of Apache Kafka {KAFKA_VERSION} holds the integration tests of Kafka's committers.
`make compat-kafka-tests` runs them twice, unchanged: against Kafka {KAFKA_VERSION} and against
Ottla. It generates this page with `ARGUMENTS=--page`. Do not edit.

## How it works

The harness of these tests starts brokers in its own JVM, with a ZooKeeper. For Ottla, a class of
the same name (`kafka.server.KafkaServer`) stands before Kafka's jar on the class path. It writes
the settings to a file and starts a broker process. The rest of the harness, the tests and the
clients are Kafka's. Each test is run in ZooKeeper mode; its variants for KRaft are not run.

A test that reads the state of a broker gets the state of the process: its metadata cache, the
offsets and producers of its logs, its replicas. A test that takes a log directory offline does so
in the process. OpenSSL accepts SHA-1 in these runs, as Kafka's tests sign their certificates with
it. A test that reads or changes something else in the
JVM of the broker cannot run; the page names it with the reason.

| to | command |
|---|---|
| run all classes on both brokers (hours; Java, Maven) | `make compat-kafka-tests` |
| run one class | `make compat-kafka-tests ARGUMENTS=kafka.api.TransactionsTest` |
| run one test | \
`make compat-kafka-tests \
ARGUMENTS='kafka.api.TransactionsTest#testBasicTransactions(java.lang.String)'` |
| run Ottla only | `make compat-kafka-tests ARGUMENTS='--broker ottla'` |
| add what passes to the list of what has to pass | \
`make compat-kafka-tests ARGUMENTS='--broker ottla --update'` |

`tests/compat/kafka_tests/passes.txt` lists the tests that pass on Ottla. A run fails when one of
them does not pass any more. `tests/compat/kafka_tests/internals.txt` has the reason of each test
that cannot pass.

## Results

*not run* means that the class was not run against this broker. Where Ottla passes all tests of a
class, the run against Kafka adds nothing.
A class that did not end in time has the tests that ended.
"""


def write_page(classes: Sequence[str], kept: Callable[[str, str], list[Result]]) -> None:
    """Writes the page from the results that are kept (class, broker)."""
    reasons = read_reasons(FOLDER / "internals.txt")
    rows, rest = [], []
    totals = [0, 0]
    for class_name in classes:
        mine, others = kept(class_name, "ottla"), kept(class_name, "kafka")
        run = [each for each in mine if each.status in (PASSED, FAILED)]
        totals[0] += len(run)
        totals[1] += sum(each.status == PASSED for each in run)
        rows.append(f"| `{class_name}` | {len(run) or '-'} | {_passed(others)} | {_passed(mine)} |")
        theirs = {each.name: each.status for each in others}
        for test in run:
            if test.status == FAILED:
                why = reason_for(reasons, class_name, test.name) or first_line(test.error)
                on_kafka = theirs.get(test.name, "not run").lower()
                name = f"{class_name.rpartition('.')[2]}.{test.name}"
                rest.append(f"| `{name}` | {on_kafka} | {why.replace('|', ' ')} |")
    today = datetime.now(UTC).date()
    text = _HEAD + f"\n{today}: {totals[1]} of {totals[0]} tests that were run pass on Ottla.\n\n"
    text += "| class | tests | passed on Kafka | passed on Ottla |\n|---|---|---|---|\n"
    text += "\n".join(rows)
    text += "\n\n## What does not pass on Ottla\n\n"
    text += "| test | on Kafka | reason |\n|---|---|---|\n" + "\n".join(rest) + "\n"
    PAGE.write_text(text, "utf-8")


def _passed(results: Sequence[Result]) -> str:
    if not results:
        return "not run"
    return str(sum(each.status == PASSED for each in results))
