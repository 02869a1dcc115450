"""Writes the table of Kafka's tools in docs/cli.md: python -m tools.kafka_tools_page"""

from __future__ import annotations

import re
from pathlib import Path

from ottla.cli.kafka_flags import TOOLS

CLI_PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
_BEGIN = "<!-- kafka-tools: python -m tools.kafka_tools_page -->\n"
_END = "<!-- end of kafka-tools -->\n"


def table() -> str:
    """A row for each action of a tool, with the flags that are not translated."""
    rows = ["| Kafka | Ottla | refused, with the way in the error |", "|---|---|---|"]
    for tool in TOOLS.values():
        refused = ", ".join(f"`{flag.name}`" for flag in tool.flags.values() if flag.kind == "!")
        actions = [flag for flag in tool.flags.values() if flag.kind == ">"]
        pairs = [(f"`{tool.name} {flag.name}`", f"`ottla {flag.text}`") for flag in actions]
        if not pairs:
            commands = ", ".join(f"`ottla {words}`" for words in tool.commands)
            pairs = [(f"`{tool.name}`", commands)]
        rows += [
            f"| {left} | {right} | {refused if number == 0 else ''} |".replace("|  |", "| |")
            for number, (left, right) in enumerate(pairs)
        ]
    return "\n".join([_BEGIN, *rows, "", _END])


if __name__ == "__main__":
    text = CLI_PAGE.read_text("utf-8")
    pattern = re.escape(_BEGIN) + ".*" + re.escape(_END)
    CLI_PAGE.write_text(re.sub(pattern, lambda _: table(), text, flags=re.DOTALL), "utf-8")
