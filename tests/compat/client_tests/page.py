"""docs/client-tests.md from the kept results."""

from __future__ import annotations

from collections.abc import Sequence

from tests.compat.client_tests.model import FAILED, PASSED, SKIPPED, Results, Suite
from tests.compat.ecosystem.clusters import KAFKA, OTTLA
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY

PAGE = REPOSITORY / "docs" / "client-tests.md"

_HEAD = f"""# Clients' own tests

The test suites that client libraries bring, run unchanged against Ottla and Apache Kafka
{KAFKA_VERSION}. What passes on Kafka is the allow-list: a run fails when one of these tests does
not pass on Ottla. `make compat-client-tests` runs them and generates this page. Do not edit.
[Compatibility](compatibility.md) has Ottla's own program for each client.

| to | command |
|---|---|
| run all suites on both brokers (an hour; root, Go, Java, Maven) | `make compat-client-tests` |
| run one suite | `make compat-client-tests ARGUMENTS='--only sarama'` |
| run some tests of it again, the others keep their results | \
`make compat-client-tests ARGUMENTS='--only sarama --test TestFuncAdmin'` |

Brokers and tests share a network namespace, because the ports are written in the tests.

| suite | version | tests | on Ottla | on Kafka | run on |
|---|---|---|---|---|---|
"""


def write_page(rows: Sequence[tuple[Suite, Results]]) -> None:
    """Writes the page."""
    PAGE.write_text(render(rows), "utf-8")


def render(rows: Sequence[tuple[Suite, Results]]) -> str:
    """The whole document."""
    lines = []
    for suite, results in rows:
        names = {name for run in results.runs.values() for name in run.tests}
        cells = " | ".join(_counts(results, kind) for kind in (OTTLA, KAFKA))
        day = max((run.day for run in results.runs.values()), default="-")
        lines.append(f"| {suite.title} | {suite.version} | {len(names) or '-'} | {cells} | {day} |")
    for suite, results in rows:
        lines += _section(suite, results)
    return _HEAD + "\n".join(lines) + "\n"


def _counts(results: Results, kind: str) -> str:
    run = results.runs.get(kind)
    if run is None:
        return "not run"
    words = {PASSED: "pass", FAILED: "fail", SKIPPED: "skipped"}
    return ", ".join(f"{run.count(state)} {word}" for state, word in words.items())


def _section(suite: Suite, results: Results) -> list[str]:
    lines = ["", f"## {suite.title}", "", suite.notes, *suite.reasons]
    for title, names in (
        ("Passes on Kafka and not on Ottla", results.differences()),
        ("Passes on Ottla and not on Kafka", results.beyond()),
        ("Fails on both", results.failed_on_both()),
    ):
        if names:
            lines += ["", f"{title}:", "", *(f"- `{name}`" for name in sorted(names))]
    again = sorted({name for run in results.runs.values() for name in run.again})
    if again:
        lines += [
            "",
            f"Run again alone after a failure: {', '.join(f'`{each}`' for each in again)}.",
        ]
    return lines
