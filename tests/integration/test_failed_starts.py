"""A start that fails for a usual mistake: its exit code, its sentence, and nothing left of it.

`ottla start` is a process here, and the znode tree that of a real server.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.zookeeper_server import free_port
from ottla.controller.model import BrokerInfo, Endpoint
from ottla.controller.registration import BrokerRegistration
from ottla.controller.tree import znodes
from ottla.controller.tree.zookeeper_store import ZooKeeperStore
from ottla.controller.zookeeper_server.server import ZooKeeperServer
from ottla.storage.directories.log_directories import DirectoryLock
from tests.doubles.broker_process import ROOT
from tests.doubles.certificates import Certificates
from tests.doubles.processes import without_the_rights_of_root

SECONDS = 60.0
ANY_PORT = "listeners=PLAINTEXT://127.0.0.1:0"
OTHER_USER = 65_534

# A disk without room: what the broker writes by a call of the system fails.
FULL_DISK = """
import errno, os, sys
def write(descriptor, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.write = write
from ottla.broker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Starts:
    """Starts a broker on a directory and on a chroot that does not exist."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.data = directory / "data"
        self.directory = directory
        self.zookeeper = zookeeper

    async def fail(
        self,
        *overrides: str,
        program: tuple[str, ...] = ("-m", "ottla.broker"),
        preexec_fn: Callable[[], None] | None = None,
    ) -> tuple[int, str]:
        """Exit code and the one line of standard error."""
        settings = [
            *(f"log.dirs={self.data}", ANY_PORT, f"zookeeper.connect={self.zookeeper}/chroot"),
            *("zookeeper.connection.timeout.ms=60000", *overrides),
        ]
        harmless = {k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "OTTLA_"))}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *program,
            *(f"--override={text}" for text in settings),
            cwd=self.directory,
            env={**harmless, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=preexec_fn,
        )
        async with asyncio.timeout(SECONDS):
            _, errors = await process.communicate()
        assert process.returncode is not None
        lines = [line for line in errors.decode().splitlines() if line.startswith("ottla: ")]
        assert "Traceback" not in errors.decode()
        (line,) = lines
        return process.returncode, line

    async def check_nothing_is_left(self) -> None:
        """No znode, no lock that is held, no meta.properties."""
        store = ZooKeeperStore(self.zookeeper)
        await store.connect()
        try:
            assert await store.children("/") == ["zookeeper"]
        finally:
            await store.close()
        assert not (self.data / "meta.properties").exists()
        if (self.data / ".lock").exists():
            with (self.data / ".lock").open("r+b") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.fixture
async def starts(tmp_path: Path) -> AsyncIterator[Starts]:
    server = ZooKeeperServer(tick_time_ms=1000)
    await server.start()
    yield Starts(tmp_path, f"127.0.0.1:{server.port}")
    await server.stop()


async def test_10_a_port_in_use(starts: Starts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = await starts.fail(f"listeners=PLAINTEXT://127.0.0.1:{port}")
        assert (code, f"127.0.0.1:{port}: another process uses that port" in line) == (10, True)
        code, line = await starts.fail(f"ottla.metrics.address=127.0.0.1:{port}")
        assert (code, "ottla.metrics.address: cannot listen on" in line) == (10, True)
    assert not starts.data.exists()
    await starts.check_nothing_is_left()


async def test_11_a_locked_directory(starts: Starts) -> None:
    starts.data.mkdir()
    with (starts.data / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        code, line = await starts.fail()
    assert (code, "is locked by another broker process" in line) == (11, True)
    await starts.check_nothing_is_left()


async def test_12_a_directory_that_cannot_be_written(starts: Starts) -> None:
    starts.data.mkdir()
    starts.data.chmod(0o500)
    code, line = await starts.fail(preexec_fn=_as_a_user)
    starts.data.chmod(0o700)
    assert (code, f"Permission denied: {starts.data}" in line) == (12, True)
    assert f"chmod -R u+rwX {starts.data}" in line
    await starts.check_nothing_is_left()
    code, line = await starts.fail("log.dirs=/dev/null/data")
    assert (code, "/dev/null is not a directory" in line) == (12, True)


async def test_13_a_full_disk(starts: Starts) -> None:
    code, line = await starts.fail(program=("-c", FULL_DISK))
    assert (code, f"no space is left in {starts.data}: free at least 64 KiB" in line) == (13, True)
    assert [path.name for path in starts.data.iterdir()] == [".lock"]
    await starts.check_nothing_is_left()


async def test_14_the_directory_of_another_user(starts: Starts) -> None:
    foreign = starts.data
    if os.geteuid() == 0:
        foreign.mkdir(mode=0o755)
        os.chown(foreign, OTHER_USER, OTHER_USER)
    else:
        foreign = Path("/usr")
    owner = foreign.stat().st_uid
    code, line = await starts.fail(f"log.dirs={foreign}", preexec_fn=_as_a_user)
    assert (code, f"the owner of {foreign} is user {owner}" in line) == (14, True)
    assert f"Run `chown -R {os.geteuid()} {foreign}`" in line
    await starts.check_nothing_is_left()


async def test_14_a_file_of_another_user(starts: Starts) -> None:
    if os.geteuid() != 0:
        return  # only root can give a file away
    starts.data.mkdir()
    (starts.data / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    os.chown(starts.data / "recovery-point-offset-checkpoint", OTHER_USER, OTHER_USER)
    code, line = await starts.fail(preexec_fn=_as_a_user)
    assert (code, "recovery-point-offset-checkpoint is user 65534" in line) == (14, True)


async def test_15_the_data_of_another_cluster(starts: Starts) -> None:
    """The usual reason is a typing error in the chroot: it must not become a cluster."""
    starts.data.mkdir()
    meta = starts.data / "meta.properties"
    meta.write_text("version=0\nbroker.id=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    before = meta.read_bytes()
    code, line = await starts.fail()
    assert (code, "belongs to the cluster AAAAAAAAAAAAAAAAAAAAAA" in line) == (15, True)
    assert "the tree is empty" in line
    assert meta.read_bytes() == before
    meta.unlink()
    await starts.check_nothing_is_left()


async def test_16_zookeeper_cannot_be_reached(starts: Starts) -> None:
    connect = f"zookeeper.connect=127.0.0.1:{free_port()}"
    code, line = await starts.fail(connect, "zookeeper.connection.timeout.ms=300")
    assert (code, "is it running, and is zookeeper.connect right?" in line) == (16, True)
    await starts.check_nothing_is_left()


async def test_17_an_unknown_setting(starts: Starts) -> None:
    code, line = await starts.fail("num.partitons=3")
    assert (code, "unknown setting num.partitons. Did you mean num.partitions?" in line) == (
        17,
        True,
    )
    await starts.check_nothing_is_left()


async def test_18_an_advertised_address_that_no_client_can_use(starts: Starts) -> None:
    code, line = await starts.fail("advertised.listeners=PLAINTEXT://0.0.0.0:9092")
    assert (code, "advertised.listeners cannot use 0.0.0.0" in line) == (18, True)
    await starts.check_nothing_is_left()


async def test_19_a_certificate_of_the_listener_of_brokers_that_has_expired(starts: Starts) -> None:
    certificates = Certificates(starts.directory)
    old = certificates.issue("old", not_after=datetime.now(UTC) - timedelta(hours=1))
    settings: tuple[Any, ...] = (
        *("listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", "ssl.keystore.type=PEM"),
        *(f"ssl.keystore.location={old}", "inter.broker.listener.name=SSL"),
    )
    code, line = await starts.fail(*settings)
    assert (code, f"the certificate of listener SSL ({old}) was valid from 20" in line) == (
        19,
        True,
    )
    await starts.check_nothing_is_left()


async def test_20_the_id_of_another_broker(starts: Starts) -> None:
    store = ZooKeeperStore(f"{starts.zookeeper}/chroot")
    await store.connect()
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "first.example", 9092)
    await BrokerRegistration(store, BrokerInfo(7, (endpoint,)), lambda: 0).register()
    code, line = await starts.fail("broker.id=7")
    assert (code, "Broker id 7 is already registered by a broker at " in line) == (20, True)
    assert "PLAINTEXT://first.example:9092. Give this broker another broker.id, or stop" in line
    data, stat = await store.get(znodes.broker_path(7))
    assert znodes.decode_broker(7, data, stat.czxid).endpoints == (endpoint,)
    assert await store.children("/brokers/ids") == ["7"]
    await store.close()


async def test_21_the_address_of_another_broker(starts: Starts) -> None:
    store = ZooKeeperStore(f"{starts.zookeeper}/chroot")
    await store.connect()
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "first.example", 9092)
    await BrokerRegistration(store, BrokerInfo(7, (endpoint,)), lambda: 0).register()
    code, line = await starts.fail(
        "broker.id=8", "advertised.listeners=PLAINTEXT://first.example:9092"
    )
    assert (code, "Broker 7 is registered at PLAINTEXT://first.example:9092" in line) == (21, True)
    assert await store.children("/brokers/ids") == ["7"]
    await store.close()


async def test_2_all_mistakes_of_the_settings_at_once(starts: Starts, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitons=3\nconfluent.a=1\nlog.roll.hours=none\nlisteners=:9092\n")
    environment = {"OTTLA_BORKER_ID": "1", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ottla.broker", str(path), "--ignore-unknown", "confluent.*"),
        *("--override", "queued.max.requests=0", "--override", "socket.request.max.bytes=5"),
        *("--override", "queued.max.request.bytes=4"),
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    first, *lines = errors.decode().splitlines()
    assert first == f"ottla: {len(lines)} settings are wrong:"
    starts_of_lines = [
        f"  {path}:1: unknown setting num.partitons. Did you mean num.partitions?",
        "  environment variable OTTLA_BORKER_ID names no setting (borker.id). Did you mean",
        f"  {path}:3: Invalid value none for configuration log.roll.hours: expected a whole number",
        "  --override: Invalid value 0 for configuration queued.max.requests: Value must be at",
        f"  {path}:4: listeners: ':9092' is not NAME://host:port, such as PLAINTEXT://127.0.0.1",
        "  --override: queued.max.request.bytes is below socket.request.max.bytes.",
    ]
    for line in starts_of_lines:
        assert any(each.startswith(line) for each in lines), (line, lines)
    assert len(lines) == len(starts_of_lines)


def used_directory(path: Path) -> Path:
    """A log directory of a broker that was stopped cleanly, with a log."""
    partition = path / "orders-0"
    partition.mkdir(parents=True)
    (partition / "00000000000000000000.log").touch()
    (path / "meta.properties").write_text("version=0\nbroker.id=1\n")
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    return path


def names_in(directory: Path) -> list[tuple[str, bytes]]:
    """Everything below a directory, and the content of the files."""
    return [
        (str(path), path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    ]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("{d}/one,{d}/two,{d}/one", "{d}/one and {d}/one are one directory: remove one"),
        ("{d}/one,{d}/one/", "{d}/one and {d}/one/ are one directory: remove one"),
        ("{d}/one,{d}/two/../one", "{d}/one and {d}/two/../one are one directory"),
        ("{d}/one,{d}/link", "{d}/one and {d}/link are one directory (one is a symbolic link)"),
        ("{d}/one/orders-1,{d}/one", "{d}/one/orders-1 is inside {d}/one, and one log"),
        ("{d}/brokers", "{d}/brokers contains {d}/brokers/broker-1, which is the log directory of"),
    ],
)
async def test_2_one_log_directory_twice(starts: Starts, names: str, problem: str) -> None:
    parent = starts.directory / "disks"
    for name in ("one", "two", "brokers/broker-1"):
        used_directory(parent / name)
    (parent / "link").symlink_to(parent / "one")
    before = names_in(parent)
    for setting in ("log.dirs", "log.dir"):
        given = (f"log.dirs={names.format(d=parent)}",)
        if setting == "log.dir":
            given = ("log.dirs=", f"log.dir={names.format(d=parent)}")
        code, line = await starts.fail(*given)
        assert (code, f"{setting}: {problem.format(d=parent)}" in line) == (2, True), line
        assert names_in(parent) == before
    await starts.check_nothing_is_left()


# Mounts one directory at another one, for this process only.
BIND_MOUNT = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
NEW_NAMESPACE, PRIVATE, BIND = 0x20000, 0x44000, 0x1000
source, target = sys.argv.pop(1).encode(), sys.argv.pop(1).encode()
if (
    libc.unshare(NEW_NAMESPACE)
    or libc.mount(None, b"/", None, PRIVATE, None)
    or libc.mount(source, target, None, BIND, None)
):
    sys.exit("ottla: no mounts here")
from ottla.broker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


async def test_2_one_log_directory_by_two_mounts(starts: Starts) -> None:
    one, mount = used_directory(starts.directory / "one"), starts.directory / "mount"
    mount.mkdir()
    before = names_in(starts.directory)
    code, line = await starts.fail(
        f"log.dirs={one},{mount}", program=("-c", BIND_MOUNT, str(one), str(mount))
    )
    if line == "ottla: no mounts here":
        return  # only root can do that; the unit tests have a file system with mounts
    assert (code, "device and inode are equal, as after a bind mount" in line) == (2, True)
    assert names_in(starts.directory) == before


async def test_11_a_locked_directory_by_another_name(starts: Starts) -> None:
    """The lock is that of the directory, not of the name that the other broker uses."""
    data, link = starts.directory / "disk", starts.directory / "link"
    data.mkdir()
    link.symlink_to(data)
    (starts.data).mkdir()
    lock = DirectoryLock(str(data))
    code, line = await starts.fail(f"log.dirs={starts.data},{link}")
    assert (code, f"log dir {link} is locked by another broker" in line) == (11, True)
    lock.release()
    await starts.check_nothing_is_left()


def _as_a_user() -> None:
    if os.geteuid() == 0:
        without_the_rights_of_root()
