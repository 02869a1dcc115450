"""`ottla share-groups` and `ottla consume --share-group` on Apache Kafka 4.3 in KRaft mode.

    python -m tests.compat.share.commands

tests/integration/test_cli_share_groups.py runs the same commands on Ottla.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.doubles.command_line import CommandLine
from tests.doubles.kraft_kafka import VERSION, start_kraft
from tests.doubles.share_commands import play


def main() -> None:
    with tempfile.TemporaryDirectory() as name, start_kraft(Path(name)) as bootstrap:
        play(CommandLine(bootstrap))
    print(f"Apache Kafka {VERSION}: the commands print the same as on Ottla")


if __name__ == "__main__":
    main()
