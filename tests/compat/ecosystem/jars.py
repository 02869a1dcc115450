"""Class paths of the Java programs: jars from Maven Central, beside those of the oracle."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.doubles.apache_kafka import KAFKA_VERSION, REPOSITORY, kafka_library
from tests.doubles.maven import ALONE, fetch_jars

# Programs that wait most of the time, on a machine with other things to do.
JVM_OPTIONS = ("-Xmx512m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_LOG4J = """log4j.rootLogger={level}, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def library(name: str, dependencies: Sequence[tuple[str, str, str, str]]) -> Path:
    """The directory `.cache/NAME/lib`, fetched when it is not there."""
    place = REPOSITORY / ".cache" / name / "lib"
    if not place.exists():
        fetch_jars(place, dependencies)
    return place


def kafka_addition(version: str, *artifacts: str) -> list[Path]:
    """The jars of Kafka 3.9.1's broker and tools and, from their version, further ones of Kafka's
    without dependencies."""
    rows = [("org.apache.kafka", name, version, ALONE) for name in artifacts]
    added = library(f"kafka-{'-'.join(artifacts)}-{version}", rows)
    return [kafka_library(KAFKA_VERSION), added]


def java(
    libraries: Sequence[Path],
    directory: Path,
    main_class: str,
    *arguments: str,
    log_level: str = "INFO",
    options: Sequence[str] = (),
) -> list[str]:
    """The command line that runs a class; log4j writes to standard output."""
    configuration = directory / f"log4j-{log_level.lower()}.properties"
    configuration.write_text(_LOG4J.format(level=log_level))
    jars = [
        str(jar)
        for place in libraries
        for jar in ([place] if place.suffix == ".jar" else sorted(place.glob("*.jar")))
    ]
    settings = (f"-Dlog4j.configuration=file:{configuration}", *options)
    return ["java", *JVM_OPTIONS, *settings, "-cp", os.pathsep.join(jars), main_class, *arguments]


def newer_java(version: int) -> str:
    """A `java` of at least this version: that of the PATH, or of /usr/lib/jvm; skips without."""
    found = shutil.which("java")
    homes = [Path(found).resolve().parents[1]] if found is not None else []
    for home in [*homes, *sorted(Path("/usr/lib/jvm").glob("*"))]:
        release = home / "release"
        text = release.read_text() if release.exists() else ""
        number = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
        if number is not None and int(number[1]) >= version:
            return str(home / "bin" / "java")
    pytest.skip(f"it needs Java {version} or later")
