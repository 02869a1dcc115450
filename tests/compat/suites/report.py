"""docs/compatibility.md from the results of a run."""

from __future__ import annotations

from collections.abc import Sequence

from tests.compat.suites.features import FEATURES
from tests.compat.suites.model import FAILED, OK, Result

HEAD = """# Compatibility

The features of Ottla that work with each client. `make compat` generates this page: it runs a
program of each client ([tests/compat/suites](../tests/compat/suites/README.md)) against a broker.
Do not edit.

**yes**: works, the result is checked. **no**: fails (see *Findings*). **-**: the client does not
have the feature, or its suite does not test it. **not run**: the machine lacked what the client
needs.

"""

MARKS = {OK: "yes", FAILED: "**no**"}


def render(results: Sequence[Result]) -> str:
    """The whole document."""
    lines = [HEAD]
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
    lines += ["", "## Findings", ""]
    for each in results:
        path = each.suite.folder / "findings.md"
        text = path.read_text().strip() if path.exists() else ""
        if text:
            lines += [f"**{each.suite.title}**", "", text, ""]
    return "\n".join(lines).rstrip() + "\n"


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
