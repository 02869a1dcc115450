"""Makes `histories.jsonl.gz` anew: called by `make golden`, needs a JDK and its jars."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VECTORS = HERE / "histories.jsonl.gz"


def main(library: Path) -> None:
    program = str(HERE / "GoldenRemoteLogMetadata.java")
    subprocess.run(["java", "-cp", f"{library}/*", program, str(VECTORS)], check=True)
    print(f"golden: {VECTORS.name} has {VECTORS.stat().st_size} bytes", file=sys.stderr)
