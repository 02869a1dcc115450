"""Writes the table of Kafka's tools in docs/cli.md: python -m tools.kafka_tools_page"""

from __future__ import annotations

import re
from pathlib import Path

from ottla.cli.kafka_flags import TOOLS

CLI_PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
_BEGIN = "<!-- kafka-tools: python -m tools.kafka_tools_page -->\n"
_END = "<!-- end of kafka-tools -->\n"


def table() -> str:
    """A row for each tool, with the flags that are not translated."""
    rows = ["| Kafka | Ottla | rejected; the error names the alternative |", "|---|---|---|"]
    for tool in TOOLS.values():
        commands = ", ".join(f"`ottla {words}`" for words in tool.commands)
        refused = ", ".join(f"`{flag.name}`" for flag in tool.flags.values() if flag.kind == "!")
        rows.append(f"| `{tool.name}` | {commands} | {refused} |".replace("|  |", "| |"))
    return "\n".join([_BEGIN, *rows, "", _END])


if __name__ == "__main__":
    text = CLI_PAGE.read_text("utf-8")
    pattern = re.escape(_BEGIN) + ".*" + re.escape(_END)
    CLI_PAGE.write_text(re.sub(pattern, lambda _: table(), text, flags=re.DOTALL), "utf-8")
