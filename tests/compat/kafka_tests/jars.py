"""Kafka's own tests as jars, and the classes of this folder compiled for them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY
from tests.doubles.maven import ALONE, fetch_jars

# Of the options for a JVM that runs for a minute.
_SHORT_RUN = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FOLDER = Path(__file__).parent
CACHE = REPOSITORY / ".cache" / f"kafka-tests-{KAFKA_VERSION}"

_TESTS = "<classifier>test</classifier>"
# Newer jars have the same classes: api-all those of org.apache.directory.api, and a second copy of
# its schema stops the key distribution center.
_NO_OLD_COPIES = (
    "<exclusions><exclusion><groupId>org.bouncycastle</groupId><artifactId>bcprov-jdk15on"
    "</artifactId></exclusion><exclusion><groupId>org.apache.directory.api</groupId>"
    "<artifactId>*</artifactId></exclusion></exclusions>"
)
_KAFKA = "org.apache.kafka"
#: What Maven Central has of Kafka's tests, what runs them, and the compiler of Kafka's Scala.
_DEPENDENCIES = [
    (_KAFKA, "kafka_2.13", KAFKA_VERSION, ""),
    *(
        (_KAFKA, name, KAFKA_VERSION, _TESTS)
        for name in (
            "kafka_2.13",
            "kafka-clients",
            "kafka-server-common",
            "kafka-raft",
            "kafka-metadata",
            "kafka-storage-api",
        )
    ),
    (_KAFKA, "kafka-tools", KAFKA_VERSION, ""),
    ("org.junit.platform", "junit-platform-console-standalone", "1.10.2", ""),
    ("org.mockito", "mockito-core", "5.10.0", ""),
    ("org.hamcrest", "hamcrest", "2.2", ""),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.78.1", ""),
    *(
        # The key distribution center of Kafka's tests, which each SASL test loads.
        ("org.apache.directory.server", f"apacheds-{name}", "2.0.0-M24", _NO_OLD_COPIES)
        for name in (
            "core-api",
            "interceptor-kerberos",
            "protocol-shared",
            "protocol-kerberos",
            "protocol-ldap",
            "ldif-partition",
            "mavibot-partition",
            "jdbm-partition",
        )
    ),
    ("org.apache.directory.api", "api-all", "1.0.2", ALONE),
    # The schema of api-all is read with it.
    ("antlr", "antlr", "2.7.7", ""),
    ("org.apache.commons", "commons-lang3", "3.14.0", ""),
    ("org.scala-lang", "scala-compiler", "2.13.15", ""),
    ("org.slf4j", "slf4j-reload4j", "1.7.36", ""),
]


def library() -> Path:
    """The directory of the jars, downloaded once."""
    found = CACHE / "lib"
    if not found.exists():
        fetch_jars(found, _DEPENDENCIES)
    return found


def class_path(*, with_shim: bool) -> str:
    """The class path of the tests; with the shim they run against Ottla."""
    places = [str(compiled("runner")), str(FOLDER / "runner"), f"{library()}/*"]
    if with_shim:
        places.insert(0, str(compiled("shim")))
    return os.pathsep.join(places)


def compiled(name: str) -> Path:
    """The directory with the classes of `runner` or `shim`, compiled when their source changed."""
    sources = sorted((FOLDER / name).glob("*.scala"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    classes = CACHE / "classes" / f"{name}-{digest[:16]}"
    if classes.exists():
        return classes
    # Beside it and renamed: an interrupted compiler leaves no half of the classes.
    partial = classes.with_suffix(f".{os.getpid()}")
    partial.mkdir(parents=True)
    jars = os.pathsep.join(str(jar) for jar in sorted(library().glob("*.jar")))
    compiler = [
        "java",
        "-Xmx900m",
        *_SHORT_RUN,
        "-cp",
        jars,
        "scala.tools.nsc.Main",
        "-cp",
        jars,
        "-nowarn",
    ]
    try:
        subprocess.run([*compiler, "-d", str(partial), *map(str, sources)], check=True)
        if not classes.exists():  # another run may have compiled them meanwhile
            partial.rename(classes)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return classes
