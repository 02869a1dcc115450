"""docs/kafka-tests.md: what passes of Kafka's own tests by class, and the reasons of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.compat.kafka_tests.jars import FOLDER
from tests.compat.kafka_tests.results import (
    FAILED,
    PASSED,
    Kept,
    read_not_run,
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
offsets, settings and producers of its logs, its replicas, its listeners. What a test does to the
objects of a broker is done in the process: it takes a log directory offline, appends to a log,
truncates a log, adds supported features, ends the ZooKeeper session, closes a connection of the
controller. Principal builders, SASL callback handlers, authorizers, quota callbacks, policies for
settings and new topics and metrics reporters of a test are called in its JVM. Some metrics of the
process have the names of Kafka's there. A remote storage manager that does nothing is a directory.
OpenSSL accepts SHA-1 in these runs, as Kafka's tests sign their certificates with it, and brokers
have `--ignore-unknown` for the settings that tests invent. The tests of Kerberos start a key
distribution center in their JVM; Ottla needs the extra `kerberos` for them. A test that
reads or changes something else in the JVM of the broker cannot run; the page names it with the
reason.

| to | command |
|---|---|
| run all classes on both brokers (hours; Java, Maven) | `make compat-kafka-tests` |
| run one class | `make compat-kafka-tests ARGUMENTS=kafka.api.TransactionsTest` |
| run one test | \
`make compat-kafka-tests \
ARGUMENTS='kafka.api.TransactionsTest#testBasicTransactions(java.lang.String)'` |
| run Ottla only | `make compat-kafka-tests ARGUMENTS='--broker ottla'` |
| hide from the tests what only Ottla has, its settings and APIs, and show the results | \
`make compat-kafka-tests \
ARGUMENTS='--broker ottla --without-additions kafka.server.ApiVersionsRequestTest'` |
| run the classes that have no result on Kafka yet, and keep the results | \
`make compat-kafka-tests ARGUMENTS='--broker kafka --missing --update'` |

A run prints both columns: of the broker that it does not run, the kept results. With `--update` it
keeps its results in `tests/compat/kafka_tests/results-kafka.tsv` and `results-ottla.tsv`, which
have the date of each, and adds what passes on Ottla to `passes.txt`. A run fails when a test of
that list does not pass any more. `internals.txt` has the reason of each test that cannot pass.

`TransactionsTest.testBumpTransactionalEpoch` fails in some runs on both brokers: 3 of 13 on Ottla,
1 of 10 on Kafka, on a busy machine on 2026-11-23. The producer completes the future of an expired
batch before it notes that its epoch has to be bumped. In the failing runs whose log of the producer
was kept, one on each broker, the test began the abort between the two.

## Results

*not run* means that the class was not run against this broker. The date is that of the last run of
a test of the class. A class that did not end has the tests that ended.
"""

_NOT_RUN = """
## Classes that are not run

The other classes of the jar whose harness can start a broker or a ZooKeeper. What is not named here
has mocks, or has no tests of its own.

| reason | classes |
|---|---|
"""

Columns = Mapping[str, Mapping[str, Mapping[str, Kept]]]


def write_page(classes: Sequence[str], columns: Columns) -> None:
    """Writes the page from the results that are kept (broker, class, test)."""
    reasons = read_reasons(FOLDER / "internals.txt")
    rows: list[str] = []
    equal: list[str] = []
    rest: dict[tuple[str, str], list[str]] = {}
    for class_name in classes:
        mine, others = (_counted(columns[each].get(class_name, {})) for each in ("ottla", "kafka"))
        tests = dict.fromkeys((*others, *mine))
        dates = [each.date for each in (*mine.values(), *others.values())]
        if _passed(mine) == _passed(others) == str(len(tests)):
            equal.append(f"`{class_name.rpartition('.')[2]}` ({len(tests)})")
        else:
            rows.append(
                f"| `{class_name}` | {len(tests) or '-'} | {_passed(others)} | {_passed(mine)} "
                f"| {max(dates, default='-')} |"
            )
        for test, result in mine.items():
            if result.status == FAILED:
                why = reason_for(reasons, class_name, test) or result.error
                on_kafka = others[test].status.lower() if test in others else "not run"
                name = f"{class_name.rpartition('.')[2]}.{test}"
                rest.setdefault((why.replace("|", " "), on_kafka), []).append(f"`{name}`")
    text = _HEAD + "\n" + _totals(classes, columns)
    text += (
        "\n| class | tests | passed on Kafka | passed on Ottla | date |\n|---|---|---|---|---|\n"
    )
    text += "\n".join(rows)
    text += "\n\nAll tests of these classes pass on both, with the number of tests:\n\n"
    text += f"{', '.join(equal)}.\n"
    text += "\n## What does not pass on Ottla\n\n"
    text += "| reason | on Kafka | tests |\n|---|---|---|\n"
    for (why, on_kafka), tests_of_reason in rest.items():
        text += f"| {why} | {on_kafka} | {', '.join(tests_of_reason)} |\n"
    not_run: dict[str, list[str]] = {}
    for name, reason in read_not_run(FOLDER / "not_run.txt").items():
        not_run.setdefault(reason, []).append(f"`{name}`")
    text += _NOT_RUN
    for reason, names in not_run.items():
        text += f"| {reason} | {', '.join(names)} |\n"
    PAGE.write_text(text, "utf-8")


def _counted(tests: Mapping[str, Kept]) -> dict[str, Kept]:
    return {name: each for name, each in tests.items() if each.status in (PASSED, FAILED)}


def _totals(classes: Sequence[str], columns: Columns) -> str:
    text = ""
    for broker, name in (("kafka", "Kafka"), ("ottla", "Ottla")):
        found = [_counted(columns[broker].get(each, {})) for each in classes]
        run = [each for tests in found for each in tests.values()]
        passed = sum(each.status == PASSED for each in run)
        begun = sum(bool(tests) for tests in found)
        text += (
            f"- {name}: {passed} of {len(run)} tests pass, of {begun} classes of {len(classes)}.\n"
        )
    return text


def _passed(tests: Mapping[str, Kept]) -> str:
    if not tests:
        return "not run"
    return str(sum(each.status == PASSED for each in tests.values()))
