"""The image of a terminal in the README: commands, run with a broker, and their output.

python -m scripts.terminal_capture            writes docs/images/terminal.svg
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ottla.broker.testing.embedded import Broker

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS = 92
SECONDS = 60

# A line that begins with $ is shown with its output; the others are not shown.
SCRIPT = """\
$ ottla topics create orders --partitions 3
$ printf 'k1:{"id": 1}\\nk2:{"id": 2}\\nk3:{"id": 3}\\n' | ottla produce orders -k :
$ ottla consume orders --group billing --key --where
ottla produce orders
$ ottla groups describe billing
$ ottla doctor
"""


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as directory, Broker(num_partitions=3) as broker:
        command = Path(directory, "ottla")
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ottla.cli.main "$@"\n')
        command.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OTTLA_BOOTSTRAP": broker.bootstrap,
            "COLUMNS": str(COLUMNS),
            "FORCE_COLOR": "1",
        }
        for line in SCRIPT.splitlines():
            output = run(line.removeprefix("$ "), environment)
            if line.startswith("$ "):
                console.print(Text.assemble(("$ ", "bold green"), (line[2:], "bold")))
                text = output.rstrip().replace(broker.bootstrap, "127.0.0.1:9092")
                console.print(Text.from_ansi(text))
                console.print()
    # The library adds a font of another site; the image loads nothing.
    picture = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="ottla"), flags=re.DOTALL)
    PICTURE.write_text(re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE) + "\n")
    print(f"written: {PICTURE.relative_to(ROOT)}")


def run(line: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=ROOT,
        env=environment,
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode:
        raise SystemExit(f"{shlex.quote(line)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
