"""Makes `messages.jsonl.gz` anew: `python -m tests.golden.regenerate`.

Needs a JDK (17 or newer) and, the first time, Maven and the network. The file comes out the same,
byte for byte, as long as the definitions and the Java program stay the same.
"""

import subprocess
import sys
from pathlib import Path

from protocol.generate import load_definitions
from tests.golden.assignors import regenerate as assignors
from tests.golden.records import regenerate as records

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / ".cache" / "golden" / "lib"


def fetch_jars() -> None:
    """Lets Maven copy kafka-clients and its friends, once."""
    if any(LIBRARY.glob("kafka-transaction-coordinator-*.jar")):
        return
    print("golden: fetching kafka-clients 3.9.1 with Maven", file=sys.stderr)
    subprocess.run(
        [
            "mvn",
            "--quiet",
            "--batch-mode",
            "--file",
            str(HERE / "pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={LIBRARY}",
        ],
        check=True,
    )


def main() -> None:
    fetch_jars()
    names = [message.name for messages in load_definitions().values() for message in messages]
    target = HERE / "messages.jsonl.gz"
    program = str(HERE / "GenerateGolden.java")
    subprocess.run(["java", "-cp", f"{LIBRARY}/*", program, str(target), *names], check=True)
    print(f"golden: {target.name} has {target.stat().st_size} bytes", file=sys.stderr)
    records.main(LIBRARY)
    assignors.main(LIBRARY)


if __name__ == "__main__":
    main()
