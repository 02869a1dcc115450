"""docs/compatibility.md from the results of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tests.compat.suites.features import FEATURES, NAMES
from tests.compat.suites.model import FAILED, FOLDER, OK, Result
from tests.compat.suites.security import SECURED
from tests.doubles.apache_kafka import KAFKA_VERSION

HEAD = f"""# Compatibility

The features of Ottla that work with each client, and what is different with Apache Kafka
{KAFKA_VERSION}. `make compat` generates this page: it runs a program of each client
([tests/compat/suites](../tests/compat/suites/README.md)) against a broker, and with
`ARGUMENTS=--both` the same program also against Kafka in ZooKeeper mode. Do not edit.
[Programs around a broker](ecosystem.md) has Connect, MirrorMaker, Streams and others.

**yes**: works, the result is checked. **no**: fails (see *Findings*). **-**: the client does not
have the feature, or its suite does not test it. **not run**: the machine lacked what the client
needs. [Kafka's system-test tools](system-tests.md) and [Kafka's own broker tests](kafka-tests.md)
have pages of their own.

"""

# Clients of one implementation: two rows of the page, one client when they are counted.
SAME = dict.fromkeys(("confluent-kafka", "confluent-kafka-javascript", "kcat"), "librdkafka")

# What `tests.compat.share.features` found.
SHARE_GROUPS = FOLDER.parent / "share" / "kept.json"

ON_KAFKA = f"Apache Kafka {KAFKA_VERSION}"

# Why a feature works on one of the brokers only.
WHY = {
    "group-consumer-protocol": f"{ON_KAFKA} has the new group protocol in KRaft mode only.",
}

MARKS = {OK: "yes", FAILED: "**no**"}


def render(results: Sequence[Result], on_kafka: Sequence[Result]) -> str:
    """The whole document, from the runs of all suites on Ottla and of the same ones on Kafka."""
    lines = [f"{HEAD}{counted(results)}\n"]
    lines += [f"| client | version | Ottla | run on | {ON_KAFKA} | run on |"]
    lines += ["|---|---|---|---|---|---|"]
    for each, other in zip(results, on_kafka, strict=True):
        cells = (each.suite.title, each.suite.version, *_summary_and_day(each))
        lines.append(f"| {' | '.join((*cells, *_summary_and_day(other)))} |")
    lines += ["", *differences(results, on_kafka)]
    for group, features in FEATURES.items():
        lines += ["", f"## {group}", ""]
        lines.append(f"| | {' | '.join(each.suite.title for each in results)} |")
        lines.append("|---" * (len(results) + 1) + "|")
        for name, text in features.items():
            marks = " | ".join(mark(each, name) for each in results)
            lines.append(f"| {text} | {marks} |")
    lines += ["", *security(results), "", *share_groups(), "", "## Findings", ""]
    for each in results:
        path = each.suite.folder / "findings.md"
        text = path.read_text().strip() if path.exists() else ""
        if text:
            lines += [f"**{each.suite.title}**", "", text, ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary_and_day(result: Result) -> tuple[str, str]:
    return summary(result), result.day or "-"


def differences(results: Sequence[Result], on_kafka: Sequence[Result]) -> list[str]:
    """The features with different results on the two brokers, and why where it is known.

    A client that was not run on one of them has no row.
    """
    rows = [
        (name, each, other)
        for name in NAMES
        for each, other in zip(results, on_kafka, strict=True)
        if each.not_run is None and other.not_run is None
        if mark(each, name) != mark(other, name)
    ]
    same = f"same result on Ottla and on {ON_KAFKA}, with each client that was run on both"
    if not rows:
        return [f"Every feature gives the {same}."]
    texts = {name: text for group in FEATURES.values() for name, text in group.items()}
    lines = [
        f"Every other feature gives the {same}:",
        "",
        f"| feature | client | Ottla | {ON_KAFKA} |",
        "|---|---|---|---|",
    ]
    for name, each, other in rows:
        marks = f"{mark(each, name)} | {mark(other, name)}"
        lines.append(f"| {texts[name]} | {each.suite.title} | {marks} |")
    reasons = [WHY[name] for name in dict.fromkeys(name for name, _, _ in rows) if name in WHY]
    return [*lines, "", *reasons] if reasons else lines


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


def share_groups() -> list[str]:
    """The section on share groups, which the suites do not use: both results of each program."""
    kept = json.loads(SHARE_GROUPS.read_text(encoding="utf-8"))
    lines = [
        "## Share groups",
        "",
        "`python -m tests.compat.share.features` runs these programs with share groups (KIP-932)",
        f"on Ottla and on Apache Kafka {kept['kafka']} in KRaft mode. Run on {kept['day']}.",
        "[Share groups](share-groups.md) has more.",
        "",
        f"| | client | Ottla | Apache Kafka {kept['kafka']} |",
        "|---|---|---|---|",
    ]
    for row in kept["rows"]:
        marks = " | ".join(MARKS[OK if row[name] else FAILED] for name in ("ottla", "kafka"))
        lines.append(f"| {row['text']} | {row['client']} | {marks} |")
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
