"""The programs of docs/quickstart.md: `make test-quickstarts [ARGUMENTS="Python Go"]`.

Each section is one language: blocks with a title are files, the `sh` block is what a reader types.
Each runs in a folder of its own on a broker of its own, and its last line must be the page's.
A language whose tool is not on this machine is reported as not run. Exit code 1 if one fails.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.doubles.broker_process import start_broker

# Its first block starts a broker; tests/integration/test_documented_commands.py does that.
PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"
ADDRESS = "localhost:9092"
RUN_SECONDS = 1800
"""A first build of a Rust program compiles a C library."""

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Program(NamedTuple):
    language: str
    commands: str
    files: dict[str, str]

    @property
    def tool(self) -> str:
        """The first word that a reader types."""
        return self.commands.split()[0]


def read_page(text: str) -> tuple[list[Program], str]:
    """The programs and the line that each prints."""
    programs: list[Program] = []
    expected = ""
    pieces = _SECTION.split(text)
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        blocks = _BLOCK.findall(body)
        files = {name: content for _, name, content in blocks if name}
        commands = "".join(content for kind, _, content in blocks if kind == "sh")
        if commands:
            programs.append(Program(title, commands, files))
        for kind, _, content in blocks:
            if kind == "text":
                expected = content.strip()
    return programs, expected


def run(program: Program, directory: Path) -> str:
    """The last line of what it prints."""
    directory.mkdir()
    with start_broker(directory.with_name(f"{directory.name}-broker")) as broker:
        for name, content in program.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content.replace(ADDRESS, broker.bootstrap))
        done = subprocess.run(
            ["sh", "-e", "-c", program.commands],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    lines = _COLOUR.sub("", done.stdout).strip().splitlines()  # Maven resets colours at the end
    if done.returncode or not lines:
        raise RuntimeError((done.stdout + done.stderr).strip()[-3000:])
    return lines[-1]


def main(languages: list[str]) -> int:
    programs, expected = read_page(PAGE.read_text())
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for program in programs:
            if languages and program.language not in languages:
                continue
            if shutil.which(program.tool) is None:
                print(f"{program.language}: not run, {program.tool} is not on this machine")
                continue
            try:
                printed = run(program, Path(folder) / program.language)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{program.language}: failed\n{error}")
                failed = True
                continue
            print(f"{program.language}: {printed}", flush=True)
            failed |= printed != expected
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
