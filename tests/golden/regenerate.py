"""Generates `messages.jsonl.gz`: `python -m tests.golden.regenerate`.

Needs a JDK (17 or newer) and, the first time, Maven and the network. The file comes out the same,
byte for byte, as long as the definitions and the Java program stay the same.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

from ottla.protocol.generate import load_definitions
from tests.doubles import maven
from tests.doubles.apache_kafka import kafka_library
from tests.doubles.kraft_kafka import LIBRARY as LIBRARY_4_3
from tests.doubles.kraft_kafka import kraft_library
from tests.golden.assignors import regenerate as assignors
from tests.golden.identity import regenerate as identity
from tests.golden.records import regenerate as records
from tests.golden.remote_log_metadata import regenerate as remote_log_metadata

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / ".cache" / "golden" / "lib"
LATER_LIBRARY = HERE.parents[1] / ".cache" / "golden" / "lib-4"
SHARE_VERSION = "4.3.1"
SHARE_LIBRARY = HERE.parents[1] / ".cache" / f"golden-{SHARE_VERSION}" / "lib"
# What we have a version of that Kafka 3.9 has not.
LATER = [
    f"ConsumerGroup{what}{side}"
    for what in ("Heartbeat", "Describe")
    for side in ("Request", "Response")
]
# What has fields or versions of Kafka 4.3 (KIP-1142, KIP-1251).
NEWEST = [
    "ConsumerGroupCurrentMemberAssignmentValue",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponse",
]
# Whose last version Kafka 3.9 has not, or not with all of its tagged fields: transaction version 2
# and requests of tools (KIP-860, KIP-1043, KIP-1066, KIP-1073).
TRANSACTIONS = [
    *(
        f"{name}{side}"
        for name in ("EndTxn", "TxnOffsetCommit")
        for side in ("Request", "Response")
    ),
    *(
        f"{name}{side}"
        for name in ("Produce", "WriteTxnMarkers")
        for side in ("Request", "Response")
    ),
    "TransactionLogValue",
    *(
        f"{name}{side}"
        for name in (
            *("AlterPartitionReassignments", "DescribeCluster", "DescribeGroups"),
            *("DescribeLogDirs", "UpdateFeatures"),
        )
        for side in ("Request", "Response")
    ),
]
# Where the messages of share groups (KIP-932) have stable versions.
SHARE_ARTIFACTS = ("kafka-clients", "kafka-group-coordinator", "kafka-share-coordinator")


def fetch_jars(library: Path, version: str) -> None:
    """Lets Maven copy kafka-clients and its friends, once."""
    if any(library.glob("kafka-storage-*.jar")):
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
    if library in (SHARE_LIBRARY, LIBRARY_4_3):  # Kafka 4.2 moved the classes of records
        text = (HERE / "GenerateGolden.java").read_text()
        moved = library.parent / "GenerateGolden.java"
        moved.write_text(text.replace(".common.record.", ".common.record.internal."))
        program = str(moved)
    subprocess.run(["java", "-cp", f"{library}/*", program, str(target), *names], check=True)
    print(f"golden: {target.name} has {target.stat().st_size} bytes", file=sys.stderr)


def keep_last_versions(file_name: str) -> None:
    """Keep the vectors of our last version of each message, without fields of later ones."""
    target = HERE / file_name
    last = {
        message.name: message.versions.last
        for messages in load_definitions().values()
        for message in messages
    }
    kept = []
    for line in gzip.decompress(target.read_bytes()).decode().splitlines(keepends=True):
        vector = json.loads(line)
        if vector["version"] == last[vector["name"]]:
            kept.append(line.replace(',"topic_id":"AAAAAAAAAAAAAAAAAAAAAA"', ""))
    target.write_bytes(gzip.compress("".join(kept).encode(), mtime=0))


def main() -> None:
    fetch_jars(LIBRARY, "3.9.1")
    fetch_jars(LATER_LIBRARY, "4.1.1")
    if not SHARE_LIBRARY.exists():
        artifacts = [("org.apache.kafka", name, SHARE_VERSION, "") for name in SHARE_ARTIFACTS]
        maven.fetch_jars(SHARE_LIBRARY, artifacts)
    names = [message.name for messages in load_definitions().values() for message in messages]
    share = [name for name in names if "Share" in name or name in NEWEST]
    write(LIBRARY, "messages.jsonl.gz", [name for name in names if name not in [*LATER, *share]])
    write(LATER_LIBRARY, "messages_4.jsonl.gz", LATER)
    write(SHARE_LIBRARY, "messages_share.jsonl.gz", share)
    write(kraft_library(), "messages_transactions.jsonl.gz", TRANSACTIONS)
    keep_last_versions("messages_transactions.jsonl.gz")
    records.main(LIBRARY)
    assignors.main(LIBRARY)
    remote_log_metadata.main(LIBRARY)
    identity.main(kafka_library())


if __name__ == "__main__":
    main()
