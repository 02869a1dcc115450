"""docs/compatibility.md from the results of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.compat.suites.features import FEATURES
from tests.compat.suites.model import FAILED, OK, Result
from tests.compat.suites.security import SECURED

HEAD = """# Compatibility

The features of Ottla that work with each client. `make compat` generates this page: it runs a
program of each client ([tests/compat/suites](../tests/compat/suites/README.md)) against a broker.
Do not edit. [Programs around a broker](ecosystem.md) has Connect, MirrorMaker, Streams and others.

**yes**: works, the result is checked. **no**: fails (see *Findings*). **-**: the client does not
have the feature, or its suite does not test it. **not run**: the machine lacked what the client
needs. [Kafka's system-test tools](system-tests.md) have a page of their own.

"""

# Clients of one implementation: two rows of the page, one client when they are counted.
SAME = dict.fromkeys(("confluent-kafka", "confluent-kafka-javascript", "kcat"), "librdkafka")

MARKS = {OK: "yes", FAILED: "**no**"}


def render(results: Sequence[Result]) -> str:
    """The whole document."""
    lines = [f"{HEAD}{counted(results)}\n"]
    lines += ["| client | version | result | run on |", "|---|---|---|---|"]
    for each in results:
        suite = each.suite
        lines.append(f"| {suite.title} | {suite.version} | {summary(each)} | {each.day or '-'} |")
    for group, features in FEATURES.items():
        lines += ["", f"## {group}", ""]
        lines.append(f"| | {' | '.join(each.suite.title for each in results)} |")
        lines.append("|---" * (len(results) + 1) + "|")
        for name, text in features.items():
            marks = " | ".join(mark(each, name) for each in results)
            lines.append(f"| {text} | {marks} |")
    lines += ["", *security(results), "", "## Findings", ""]
    for each in results:
        path = each.suite.folder / "findings.md"
        text = path.read_text().strip() if path.exists() else ""
        if text:
            lines += [f"**{each.suite.title}**", "", text, ""]
    return "\n".join(lines).rstrip() + "\n"


def counted(results: Sequence[Result]) -> str:
    """How many clients there are: versions of one are one, and so are wrappers of one library."""
    names = {SAME.get(each, each) for each in map(client_name, results)}
    tools = {name for name in names if "tools" in name}
    return (
        f"{len(names - tools)} client libraries and {' and '.join(sorted(tools)) or 'no tools'}. "
        "Versions of one client have columns of their\nown and count once, and so do "
        "confluent-kafka, confluent-kafka-javascript and\nkcat, which are built on librdkafka."
    )


def client_name(result: Result) -> str:
    """The title of a suite without the version."""
    return re.sub(r" \d[\d.]*$", "", result.suite.title)


def security(results: Sequence[Result]) -> list[str]:
    """The section on secured listeners, which the suites do not use."""
    titles = [each.suite.title for each in results]
    lines = [
        "## TLS, SASL, ACLs",
        "",
        "The tests of this column run these clients against listeners with TLS, SASL and an",
        "authorizer; the suites above do not.",
        "",
        f"| | {' | '.join(titles)} | test |",
        "|---" * (len(titles) + 2) + "|",
    ]
    for row in SECURED.values():
        marks = " | ".join("yes" if title in row.clients else "-" for title in titles)
        lines.append(f"| {row.text} | {marks} | [{Path(row.test).stem}](../{row.test}) |")
    return lines


def mark(result: Result, name: str) -> str:
    """One cell."""
    if result.not_run is not None:
        return "not run"
    return MARKS.get(result.states.get(name, ""), "-")


def summary(result: Result) -> str:
    """One client in a few words."""
    if result.not_run is not None:
        return f"not run: {result.not_run}"
    states = list(result.states.values())
    failed = states.count(FAILED)
    text = f"{states.count(OK)} features work"
    return text + (f", {failed} do not" if failed else "")
