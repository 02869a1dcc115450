"""The base images of the Dockerfile and the compose file: pulled, or made where Docker Hub is out
of reach.

Made ones have the names of the public ones. They are Debian from `mmdebstrap` with a CPython of
pyenv (else Debian's own), or with the jars of ZooKeeper that the tests download with Maven. They
trust the certificate authorities that this machine trusts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.compose import engine
from tests.compose.wrong import Wrong

ROOT = engine.ROOT
DEBIAN = "debian:bookworm-slim"
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
PULL_SECONDS = 300.0
BUILD_SECONDS = 1800.0

# What CPython's modules are linked to.
_LIBRARIES = (
    "libbz2-1.0 libexpat1 libffi8 libsqlite3-0 libssl3 libreadline8 libncursesw6 liblzma5 libnsl2 "
    "libtirpc3 libuuid1 zlib1g"
)
_INSTALL = "apt-get update && apt-get install -y --no-install-recommends"
_CLEAN = "rm -rf /var/lib/apt/lists/*"

_PYENV = f"""\
FROM {DEBIAN}
RUN {_INSTALL} {_LIBRARIES} && {_CLEAN}
ADD python.tar /usr/local/
RUN ldconfig && python3 -c 'import bz2, ctypes, lzma, sqlite3, ssl'
CMD ["python3"]
"""
_DEBIAN_PYTHON = f"""\
FROM {DEBIAN}
RUN {_INSTALL} python3-minimal python3-venv && {_CLEAN}
CMD ["python3"]
"""
_ZOOKEEPER = f"""\
FROM {DEBIAN}
RUN {_INSTALL} openjdk-17-jre-headless && {_CLEAN}
ENV ZOO_CONF_DIR=/conf ZOO_DATA_DIR=/data ZOO_DATA_LOG_DIR=/datalog ZOO_TICK_TIME=2000 \\
    ZOO_MAX_CLIENT_CNXNS=60 JVMFLAGS=-Xmx256m
RUN groupadd --gid 1000 zookeeper && useradd --uid 1000 --gid zookeeper zookeeper \\
    && install -d -o zookeeper -g zookeeper /conf /data /datalog
COPY lib /opt/zookeeper/lib
COPY docker-entrypoint.sh /
COPY zkServer.sh /usr/local/bin/
USER zookeeper
VOLUME ["/data", "/datalog"]
EXPOSE 2181
ENTRYPOINT ["/docker-entrypoint.sh"]
CMD ["zkServer.sh", "start-foreground"]
"""
_ENTRYPOINT = """\
#!/bin/sh
# The variables of ZooKeeper's image that the compose files set.
set -eu
if [ ! -f "$ZOO_CONF_DIR/zoo.cfg" ]; then
    {
        printf 'dataDir=%s\\ndataLogDir=%s\\n' "$ZOO_DATA_DIR" "$ZOO_DATA_LOG_DIR"
        printf 'tickTime=%s\\ninitLimit=10\\nsyncLimit=5\\n' "$ZOO_TICK_TIME"
        printf 'standaloneEnabled=%s\\n' "${ZOO_STANDALONE_ENABLED:-true}"
        for server in ${ZOO_SERVERS:-clientPort=2181}; do echo "$server"; done
        printf 'maxClientCnxns=%s\\nadmin.enableServer=false\\n' "$ZOO_MAX_CLIENT_CNXNS"
        [ -z "${ZOO_4LW_COMMANDS_WHITELIST:-}" ] ||
            echo "4lw.commands.whitelist=$ZOO_4LW_COMMANDS_WHITELIST"
    } > "$ZOO_CONF_DIR/zoo.cfg"
    echo "${ZOO_MY_ID:-1}" > "$ZOO_DATA_DIR/myid"
fi
exec "$@"
"""
_ZK_SERVER = """\
#!/bin/sh
# The two commands of ZooKeeper's script that the image and the compose files use.
classes='/opt/zookeeper/lib/*'
case "$1" in
    start-foreground)
        exec java -cp "$classes" $JVMFLAGS org.apache.zookeeper.server.quorum.QuorumPeerMain \\
            "$ZOO_CONF_DIR/zoo.cfg" ;;
    status)
        exec java -Xmx32m -cp "$classes" org.apache.zookeeper.client.FourLetterWordMain \\
            localhost 2181 srvr ;;
esac
"""
# Of Kafka's jars: what ZooKeeper needs.
_JARS = (
    *("zookeeper-*", "zookeeper-jute-*", "metrics-core-4*", "netty-*", "snappy-java-*"),
    *("slf4j-api-*", "slf4j-reload4j-*", "reload4j-*", "commons-cli-*", "commons-io-*"),
    "audience-annotations-*",
)


def names() -> dict[str, str]:
    """The base images by what they are, under the names that the files of the project ask for."""
    base = re.search(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    text = (ROOT / "docker-compose.yml").read_text()
    zookeeper = re.search(r"^    image: (zookeeper:\S+)$", text, re.MULTILINE)
    assert base is not None
    assert zookeeper is not None
    return {"python": base[1], "zookeeper": zookeeper[1]}


def provide_images(kinds: Iterable[str]) -> str:
    """Make the images be there. Returns why one cannot be; "" if they are."""
    for kind in kinds:
        image = names()[kind]
        if _has(image) or _pulled(image):
            continue
        try:
            _make(kind, image)
        except (Wrong, OSError, subprocess.SubprocessError) as error:
            return f"the image {image} cannot be pulled, and cannot be made here: {error}"
    return ""


def _has(image: str) -> bool:
    done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False)
    return done.returncode == 0


def _pulled(image: str) -> bool:
    try:
        done = subprocess.run(
            ["docker", "pull", "--quiet", image],
            capture_output=True,
            timeout=PULL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _make(kind: str, image: str) -> None:
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise Wrong("that needs root and the package mmdebstrap")
    print(f"  making {image} from Debian's packages", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        if not _has(DEBIAN):
            _make_debian(context / "debian.tar")
        text = _python_context(context, image) if kind == "python" else _zookeeper_context(context)
        (context / "Dockerfile").write_text(text)
        _run("docker", "build", "--quiet", "--tag", image, folder)


def _make_debian(archive: Path) -> None:
    _run(
        *("mmdebstrap", "--quiet", "--variant=minbase"),
        "--include=ca-certificates,netbase,tzdata",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
        f"--customize-hook=copy-in {AUTHORITIES} {os.path.dirname(AUTHORITIES)}/",
        '--customize-hook=mkdir -p "$1/usr/share/man/man1"',  # Java's packages want it
        *("bookworm", str(archive), engine.mirror()),
    )
    # pip brings authorities of its own unless it is told others.
    _run("docker", "import", "--change", f"ENV PIP_CERT={AUTHORITIES}", str(archive), DEBIAN)
    archive.unlink()


def _python_context(context: Path, image: str) -> str:
    version = image.partition(":")[2].partition("-")[0]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(versions.glob(f"{version}.*"), key=lambda path: path.stat().st_mtime)
    if not found:
        return _DEBIAN_PYTHON
    left_out = ("__pycache__", "lib/python3.*/test", "lib/python3.*/idlelib", "*.a", "./share")
    _run(
        *("tar", "-C", str(found[-1]), *(f"--exclude={each}" for each in left_out)),
        *("--exclude=lib/python3.*/site-packages/*.pth", "-cf", str(context / "python.tar"), "."),
    )
    return _PYENV


def _zookeeper_context(context: Path) -> str:
    from tests.doubles.apache_kafka import kafka_library

    library = kafka_library()
    (context / "lib").mkdir()
    for pattern in _JARS:
        for jar in library.glob(f"{pattern}.jar"):
            shutil.copy(jar, context / "lib")
    for name, text in {"docker-entrypoint.sh": _ENTRYPOINT, "zkServer.sh": _ZK_SERVER}.items():
        (context / name).write_text(text)
        (context / name).chmod(0o755)
    return _ZOOKEEPER


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if done.returncode:
        raise Wrong(f"{command[0]} {command[1]} failed: {done.stderr.strip()[-600:]}")
