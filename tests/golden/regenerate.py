"""Generates `messages.jsonl.gz`: `python -m tests.golden.regenerate`.

Needs a JDK (17 or newer) and, the first time, Maven and the network. The file comes out the same,
byte for byte, as long as the definitions and the Java program stay the same.
"""

import subprocess
import sys
from pathlib import Path

from ottla.protocol.generate import load_definitions
from tests.golden.assignors import regenerate as assignors
from tests.golden.records import regenerate as records

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / ".cache" / "golden" / "lib"
LATER_LIBRARY = HERE.parents[1] / ".cache" / "golden" / "lib-4"
# What we have a version of that Kafka 3.9 has not.
LATER = [
    f"ConsumerGroup{what}{side}"
    for what in ("Heartbeat", "Describe")
    for side in ("Request", "Response")
]


def fetch_jars(library: Path, version: str) -> None:
    """Lets Maven copy kafka-clients and its friends, once."""
    if any(library.glob("kafka-transaction-coordinator-*.jar")):
        return
    print(f"golden: fetching kafka-clients {version} with Maven", file=sys.stderr)
    subprocess.run(
        [
            "mvn",
            "--quiet",
            "--batch-mode",
            "--file",
            str(HERE / "pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={library}",
            f"-Dkafka.version={version}",
        ],
        check=True,
    )


def write(library: Path, file_name: str, names: list[str]) -> None:
    """The vectors of these messages by the classes in `library`."""
    target = HERE / file_name
    program = str(HERE / "GenerateGolden.java")
    subprocess.run(["java", "-cp", f"{library}/*", program, str(target), *names], check=True)
    print(f"golden: {target.name} has {target.stat().st_size} bytes", file=sys.stderr)


def main() -> None:
    fetch_jars(LIBRARY, "3.9.1")
    fetch_jars(LATER_LIBRARY, "4.1.1")
    names = [message.name for messages in load_definitions().values() for message in messages]
    write(LIBRARY, "messages.jsonl.gz", [name for name in names if name not in LATER])
    write(LATER_LIBRARY, "messages_4.jsonl.gz", LATER)
    records.main(LIBRARY)
    assignors.main(LIBRARY)


if __name__ == "__main__":
    main()
