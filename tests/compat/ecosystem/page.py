"""docs/ecosystem.md from the kept results."""

from __future__ import annotations

from collections.abc import Sequence

from tests.compat.ecosystem.catalogue import LOOKED_UP, NOT_RUN, WANTED
from tests.compat.ecosystem.clusters import KAFKA, OTTLA
from tests.compat.ecosystem.model import Program
from tests.compat.ecosystem.results import Results
from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY

PAGE = REPOSITORY / "docs" / "ecosystem.md"

_HEAD = f"""# Programs around a broker

The programs that run beside a broker in an installation: Connect, MirrorMaker, Streams,
registries, stream processors, monitors. `make compat-ecosystem` runs each of them, unchanged and by
the same script, against Ottla and against Apache Kafka {KAFKA_VERSION}, and generates this page. Do
not edit. [Compatibility](compatibility.md) has the client libraries.

| to | command |
|---|---|
| run all programs on both brokers (an hour; Java, Maven) | `make compat-ecosystem` |
| run one program | `make compat-ecosystem ARGUMENTS='--only connect'` |
| run one program on one broker, and keep its logs | \
`make compat-ecosystem ARGUMENTS='--only connect --broker ottla --keep .'` |

A run fails when a check passes on Kafka and not on Ottla.
"""
_WANTED_HEAD = (
    "## What a broker in ZooKeeper mode does not have",
    "",
    "These ask for something that Kafka has in KRaft mode or in later versions only. The",
    "other programs of this page work without it. Telegraf fetches as a client of Kafka 0.10.2",
    "unless its `version` is set; both brokers serve that.",
    "",
    f"| who asks | for what | Kafka {KAFKA_VERSION} in ZooKeeper mode | Ottla |",
    "|---|---|---|---|",
)
_MARKS = {True: "yes", False: "**no**", None: "-"}


def write_page(rows: Sequence[tuple[Program, Results]]) -> None:
    """Writes the page."""
    PAGE.write_text(render(rows), "utf-8")


def render(rows: Sequence[tuple[Program, Results]]) -> str:
    """The whole document."""
    lines = [_HEAD, "| program | version | checks | on Ottla | on Kafka | run on |"]
    lines.append("|---|---|---|---|---|---|")
    for program, results in rows:
        day = max((run.day for run in results.runs.values()), default="-")
        passed = " | ".join(_passed(results, kind) for kind in (OTTLA, KAFKA))
        count = len(results.names()) or "-"
        anchor = f"[{program.title}](#{_anchor(program.title)})" if results.runs else program.title
        lines.append(f"| {anchor} | {program.version} | {count} | {passed} | {day} |")
    lines += ["", "**yes**: verified. **no**: fails. **-**: the script did not reach it.", ""]
    for program, results in rows:
        if results.runs:
            lines += _section(program, results)
    lines += [*_WANTED_HEAD, *(f"| {' | '.join(row)} |" for row in WANTED), ""]
    if NOT_RUN:
        lines += ["## Not run", "", f"These could not be installed on {LOOKED_UP}.", ""]
        lines += ["| program | reason | of its kind, above |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in NOT_RUN]
    return "\n".join(lines).rstrip() + "\n"


def _section(program: Program, results: Results) -> list[str]:
    lines = [f"## {program.title}", ""]
    if program.notes:
        lines += [*program.notes, ""]
    states = {
        name: tuple(results.state(kind, name) for kind in (OTTLA, KAFKA))
        for name in results.names()
    }
    verified = [name for name, state in states.items() if all(state)]
    if verified:
        lines += [f"Verified on both: {'; '.join(verified)}.", ""]
    rest = {name: state for name, state in states.items() if not all(state)}
    if rest:
        lines += ["| check | Ottla | Kafka |", "|---|---|---|"]
        lines += [f"| {name} | {_MARKS[a]} | {_MARKS[b]} |" for name, (a, b) in rest.items()]
        lines.append("")
    return lines


def _passed(results: Results, kind: str) -> str:
    run = results.runs.get(kind)
    return str(run.passed()) if run is not None else "not run"


def _anchor(title: str) -> str:
    kept = "".join(each for each in title.lower() if each.isalnum() or each in " -_")
    return kept.replace(" ", "-")
