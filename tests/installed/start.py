"""`ottla start` of an installed Ottla, in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.installed.builds import clean_environment
from tests.installed.conftest import Installed

SECONDS = 60.0


class Started(NamedTuple):
    """The address of a broker, and what it logged until it served clients."""

    bootstrap: str
    log: str


@contextmanager
def started(
    installed: Installed, folder: Path, environment: Mapping[str, str]
) -> Iterator[Started]:
    """A broker with its data in `folder`, which is its working directory. It must stop cleanly."""
    process = subprocess.Popen(
        [
            installed.folder / "bin" / "ottla",
            "start",
            "--override=listeners=PLAINTEXT://127.0.0.1:0",
            f"--override=log.dirs={folder / 'data'}",
        ],
        cwd=folder,
        env={**clean_environment(), **environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    try:
        for line in process.stdout:  # ends when the process does
            said += line
            found = re.search(r"PLAINTEXT://(127\.0\.0\.1:\d+)", line)
            if found:
                yield Started(found[1], said)
                break
        else:
            raise AssertionError(f"ottla start ended:\n{said}")
    finally:
        process.send_signal(signal.SIGTERM)
        said += process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, said
