"""docker-compose.secure.yml: what the file says, and the same settings as a process."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ottla.broker.config.definitions import broker_settings
from ottla.broker.config.sources import is_known, variable_to_setting
from ottla.cli.zookeeper_server import free_port
from tests.doubles.broker_process import ROOT
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.wire import Wire

SCRIPT = ROOT / "deploy" / "secure" / "create-secrets.sh"
FILE = yaml.safe_load((ROOT / "docker-compose.secure.yml").read_text())
DEADLINE_S = 60.0


def service() -> dict[str, Any]:
    [(_, found)] = FILE["services"].items()
    assert isinstance(found, dict)
    return found


def test_nothing_is_open() -> None:
    """The file as data: one port of this machine, one protocol, no privileges."""
    broker, variables = service(), service()["environment"]
    assert all(port.startswith("127.0.0.1:") for port in broker["ports"])
    assert len(broker["ports"]) == 1
    protocols = {
        each.split(":")[1] for each in variables["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    }
    assert protocols == {"SASL_SSL"}
    assert variables["KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND"] == "false"
    assert variables["OTTLA_METRICS_ADDRESS"].startswith("127.0.0.1:")
    assert not [name for name in variables if "CONSOLE" in name]
    assert broker["read_only"] is True
    assert broker["cap_drop"] == ["ALL"]
    assert broker["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in broker
    assert "network_mode" not in broker


def test_every_variable_is_a_setting() -> None:
    for name in service()["environment"]:
        setting = variable_to_setting(name)
        assert f"ottla.{setting}" in broker_settings() or is_known(setting), name


def test_no_secret_is_in_the_file() -> None:
    """They are files that git does not keep."""
    text = (ROOT / "docker-compose.secure.yml").read_text()
    for value in re.findall(r"password=(\S+)", text):
        assert value.startswith('"$${directory:/run/secrets:'), value
    assert "/deploy/secure/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    for each in FILE["secrets"].values():
        assert each["file"].startswith("./deploy/secure/secrets/")


class Secured(NamedTuple):
    port: int
    http_port: int
    secrets: Path
    log: Path

    @property
    def bootstrap(self) -> str:
        return f"localhost:{self.port}"

    def command(self, properties: Path | None = None) -> CommandLine:
        made = CommandLine(self.bootstrap)
        if properties is not None:
            made.environment["OTTLA_COMMAND_CONFIG"] = str(properties)
        return made


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secure")
    secrets = directory / "secrets"
    subprocess.run([SCRIPT, secrets], check=True, capture_output=True, timeout=DEADLINE_S)
    found = Secured(free_port(), free_port(), secrets, directory / "broker.log")
    with started(found):
        yield found


def here(secured: Secured, text: str) -> str:
    """A text of the file with the paths and ports of this test."""
    replaced = {
        "/run/secrets": str(secured.secrets),
        "0.0.0.0:9093": f"127.0.0.1:{secured.port}",
        "localhost:9093": f"localhost:{secured.port}",
        "127.0.0.1:9404": f"127.0.0.1:{secured.http_port}",
    }
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text.replace("$$", "$")  # compose's own escape


@contextmanager
def started(secured: Secured) -> Iterator[subprocess.Popen[bytes]]:
    """The service as a process: its command and variables, its volume beside its log.

    Its directory is one that nothing can be written to, as that of the container is.
    """
    volume = secured.log.parent / "data"
    environment = {
        **{name: text for name, text in os.environ.items() if name[:6] not in ("KAFKA_", "OTTLA_")},
        **{name: here(secured, text) for name, text in service()["environment"].items()},
        "KAFKA_LOG_DIRS": str(volume),
        "PYTHONPATH": str(ROOT),
    }
    command = [here(secured, word) for word in service()["command"]]
    with secured.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla.cli.main", *command],
            cwd="/proc", env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        eventually(
            lambda: "is ready" in secured.log.read_text() or process.poll() is not None,
            seconds=DEADLINE_S,
        )
        assert process.poll() is None, secured.log.read_text()
        yield process
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def is_healthy(secured: Secured) -> bool:
    """Runs the command of the file's health check."""
    words = [here(secured, word) for word in service()["healthcheck"]["test"]]
    assert words.pop(0) == "CMD"
    assert words.pop(0) == "python3"
    done = subprocess.run([sys.executable, *words], capture_output=True, timeout=DEADLINE_S)
    return done.returncode == 0


def seconds_of(text: str) -> float:
    assert text.endswith("s"), text
    return float(text[:-1])


def test_the_administrator_lets_a_user_in(secured: Secured) -> None:
    admin = secured.command(secured.secrets / "admin.properties")
    admin.done("topics", "create", "orders")
    admin.done("users", "add", "alice", text="al1ce-pass\n")
    own = secured.secrets / "alice.properties"
    text = (secured.secrets / "admin.properties").read_text()
    own.write_text(
        re.sub(r"sasl\.password=.*", "sasl.password=al1ce-pass", text).replace("admin\n", "alice\n")
    )
    alice = secured.command(own)
    assert alice.done("topics", "list", "--json").value == []
    assert alice("produce", "orders", text="one\n").code == 1
    for operation in ("read", "write"):
        admin.done("acls", "add", "--allow", "User:alice", "-o", operation, "--topic", "orders")
    alice.done("produce", "orders", text="one\n")
    assert alice.done("consume", "orders").output == "one\n"
    assert alice("topics", "create", "more").code == 1


def test_others_stay_outside(secured: Secured) -> None:
    # Without TLS, without a login, with a wrong password.
    with Wire(f"127.0.0.1:{secured.port}") as plain:
        plain.send_bytes(b"\x00\x00\x00\x0e\x00\x12\x00\x00\x00\x00\x00\x01\x00\x04wire")
        with pytest.raises(Exception):  # noqa: B017 (closed, or an alert of TLS)
            plain.receive_frame()
    text = (secured.secrets / "admin.properties").read_text()
    wrong = secured.secrets / "wrong.properties"
    wrong.write_text(re.sub(r"sasl\.password=.*", "sasl.password=guess", text))
    assert secured.command(wrong)("topics", "list").code == 4
    # Another authority.
    other = secured.secrets / "other"
    subprocess.run([SCRIPT, other], check=True, capture_output=True, timeout=DEADLINE_S)
    outsider = secured.command(other / "admin.properties")("topics", "list")
    assert outsider.code == 4
    assert "is not trusted" in outsider.errors
    log = secured.log.read_text()
    assert '"audit": "login", "principal": "User:admin"' in log
    password = (secured.secrets / "admin-password").read_text().strip()
    assert password not in log


def test_the_secrets_are_kept(secured: Secured) -> None:
    before = {each.name: each.read_bytes() for each in secured.secrets.glob("*.pem")}
    subprocess.run([SCRIPT, secured.secrets], check=True, capture_output=True, timeout=DEADLINE_S)
    assert {each.name: each.read_bytes() for each in secured.secrets.glob("*.pem")} == before
    assert secured.secrets.stat().st_mode & 0o777 == 0o700
    assert (secured.secrets / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (secured.secrets / "admin.properties").stat().st_mode & 0o777 == 0o600


def test_it_is_started_again_on_its_volume(tmp_path: Path) -> None:
    """As `docker compose up`, `stop` and `up` do, with another password of the administrator."""
    secrets = tmp_path / "secrets"
    subprocess.run([SCRIPT, secrets], check=True, capture_output=True, timeout=DEADLINE_S)
    secured = Secured(free_port(), free_port(), secrets, tmp_path / "broker.log")
    with started(secured) as process:
        assert is_healthy(secured)
        secured.command(secrets / "admin.properties").done("topics", "create", "orders")
        limit = service()["pids_limit"]
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) < limit / 4
        assert open_for_writing(process.pid) <= {secured.log, *tmp_path.glob("data/**/*")}
        process.terminate()
        assert process.wait(seconds_of(service()["stop_grace_period"])) == 0
        assert not is_healthy(secured)
    before = (secrets / "admin.properties").rename(secrets / "before.properties")
    (secrets / "admin-password").unlink()
    subprocess.run([SCRIPT, secrets], check=True, capture_output=True, timeout=DEADLINE_S)
    with started(secured):
        assert is_healthy(secured)
        now = secured.command(secrets / "admin.properties").done("topics", "list", "--json")
        assert "orders" in now.output
        assert secured.command(before)("topics", "list").code == 4


def open_for_writing(pid: int) -> set[Path]:
    """The regular files that a process can write to."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            path, mode = Path(os.readlink(descriptor)), descriptor.stat().st_mode
            info = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
            flags = re.search(r"^flags:\s+(\d+)", info, re.MULTILINE)
            assert flags is not None, info
            if stat.S_ISREG(mode) and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                found.add(path)
    return found


def test_the_secrets_are_readable_in_the_container(tmp_path: Path) -> None:
    """Its user is no user of this machine, and gets the files by a bind mount."""
    subprocess.run([SCRIPT, tmp_path / "s"], check=True, capture_output=True, timeout=DEADLINE_S)
    for each in FILE["secrets"].values():
        path = tmp_path / "s" / Path(each["file"]).name
        assert path.stat().st_mode & 0o004, path
