"""A ZooKeeper server on this machine, from the jars of pyspark.

It finds Java and the jars, writes the configuration and builds the command, which
`ottla cluster start` and the tests run.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.cli.output import Failure

_JVM_OPTIONS = ("-Xmx256m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SETTINGS = {
    "clientPortAddress": "127.0.0.1",
    "tickTime": "500",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
}
_LOG_SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="WARN"><Appenders><Console name="out"><PatternLayout pattern="%d %p %m%n"/>
</Console></Appenders><Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def server_command(
    home: Path,
    port: int,
    *,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
) -> list[str]:
    """The command of a server on 127.0.0.1 with its data and its configuration in `home`.

    `settings` extend and override those of zoo.cfg. Raises Failure without Java or jars.
    """
    java, jars = find_java(), zookeeper_jars()
    home.mkdir(parents=True, exist_ok=True)
    lines = {
        **_SETTINGS,
        "dataDir": str(home / "data"),
        "clientPort": str(port),
        **(settings or {}),
    }
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    (home / "zoo.cfg").write_text(text)
    (home / "log4j2.xml").write_text(_LOG_SETTINGS)
    return [
        java,
        *_JVM_OPTIONS,
        f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}",
        *java_options,
        "-cp",
        f"{jars}/*",
        "org.apache.zookeeper.server.ZooKeeperServerMain",
        str(home / "zoo.cfg"),
    ]


def find_java() -> str:
    """The path of `java`; raises Failure with the way to install it."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java")
    if found is None:
        raise Failure(
            "ZooKeeper needs Java, which was not found: no JAVA_HOME and no `java` on the PATH. "
            "Install it (Debian: apt-get install openjdk-17-jre-headless), or run a single "
            "broker, which needs neither: ottla start."
        )
    return found


def zookeeper_jars() -> Path:
    """The directory with ZooKeeper's jars; raises Failure with the way to install them."""
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        jars = Path(spec.origin).parent / "jars"
        if any(jars.glob("zookeeper-3*.jar")):
            return jars
    raise Failure(
        "ZooKeeper is in the jars of pyspark, which is not installed: pip install pyspark, "
        "or run a single broker, which needs no ZooKeeper: ottla start."
    )


def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago.

    The kernel takes the ports of outgoing connections from 32768 on (Linux), so none of them takes
    this one before a server listens on it.
    """
    while True:
        port = 12_000 + secrets.randbelow(20_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
