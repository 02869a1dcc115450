"""The jars of Spark's own Kafka connector, the peer that ours is compared with.

They live in `.cache/spark-sql-kafka-0-10/VERSION`. When they are not there, Maven fetches them once
(four jars, a few MB); without Maven there are none, and who asked says so.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

# The newest that is published; it runs on Spark 4.2 and 4.3.
CONNECTOR_VERSION = "4.2.0"
CLIENTS_VERSION = "3.9.2"
POOL_VERSION = "2.13.1"
# Not every registry has the token provider in every version. Its code is for delegation tokens
# and has not changed; any of these will do.
TOKEN_PROVIDER_VERSIONS = ("4.2.0", "4.0.0")

REPOSITORY = Path(__file__).resolve().parents[2]
DIRECTORY = REPOSITORY / ".cache" / "spark-sql-kafka-0-10" / CONNECTOR_VERSION
MAVEN_TIMEOUT_S = 300

_DEPENDENCY = """<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>
<version>{version}</version><exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>
</exclusion></exclusions></dependency>"""


def connector_jars() -> list[Path] | str:
    """The jars, fetched if need be; or the sentence that says why there are none."""
    jars = sorted(DIRECTORY.glob("*.jar"))
    if jars:
        return jars
    if shutil.which("mvn") is None:
        return f"Spark's Kafka connector is not in {DIRECTORY} and there is no `mvn` to fetch it"
    for token_provider in TOKEN_PROVIDER_VERSIONS:
        if _fetch(token_provider):
            return sorted(DIRECTORY.glob("*.jar"))
    return f"Maven could not fetch Spark's Kafka connector {CONNECTOR_VERSION}"


def _fetch(token_provider: str) -> bool:
    wanted = [
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", token_provider),
        ("org.apache.kafka", "kafka-clients", CLIENTS_VERSION),
        ("org.apache.commons", "commons-pool2", POOL_VERSION),
    ]
    dependencies = "".join(
        _DEPENDENCY.format(group=group, artifact=artifact, version=version)
        for group, artifact, version in wanted
    )
    project = DIRECTORY.parent / "project"
    project.mkdir(parents=True, exist_ok=True)
    (project / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>peer</groupId>"
        "<artifactId>peer</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>",
        encoding="utf-8",
    )
    # Copied beside and renamed, so that an interrupted download is never taken for a whole one.
    partial = DIRECTORY.parent / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(project / "pom.xml"), *goal],
            capture_output=True,
            text=True,
            timeout=MAVEN_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode != 0 or len(list(partial.glob("*.jar"))) != len(wanted):
        return False
    partial.rename(DIRECTORY)
    return True
