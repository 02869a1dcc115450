"""A Docker engine for the checks of containers, on a machine that has none.

    python -m tests.compose.engine start     download it, start it, make the base images
    eval "$(python -m tests.compose.engine env)"
    python -m tests.compose.engine stop

`make test-compose`, `test-image` and `test-chart` call `provide`: an engine that responds is used
as it is; else one is started, where the user is root on a Debian of amd64 or arm64, and it stays
for the next run. All of it is in .cache/engine of the checkout. Without these conditions the checks
say what is missing.

Debian 13 has Docker 26, BuildKit and Compose; their packages need no newer libc than Debian 12 has,
so they are unpacked there and not installed. `runc` and `iptables` are those of the machine. Base
images come from Docker Hub; where it is out of reach they are made from Debian's packages
(tests/compose/base_images.py).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".cache" / "engine"
PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "docker-compose", "containerd", "tini")
TOOLS = ("iptables", "runc", "mmdebstrap", "ca-certificates", "libfaketime")
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# The name of a Unix socket has 107 bytes.
SOCKET_PATH_MAX = 107
START_SECONDS = 60.0
STOP_SECONDS = 60.0
DOWNLOAD_SECONDS = 900.0
LOCK_SECONDS = 600


class Missing(Exception):
    """What this machine lacks for an engine, in a sentence."""


def environment(work: Path = WORK) -> dict[str, str]:
    """The variables with which docker commands use the engine below `work`."""
    programs = [str(work / "root" / "usr" / name) for name in ("bin", "sbin")]
    return {
        "PATH": os.pathsep.join([*programs, os.environ.get("PATH", "")]),
        "DOCKER_HOST": f"unix://{_socket(work)}",
        "DOCKER_CONFIG": str(work / "config"),
    }


def responds(variables: Mapping[str, str]) -> bool:
    """Whether docker and docker compose respond."""
    if shutil.which("docker", path=variables.get("PATH")) is None:
        return False
    commands = (
        ["docker", "info", "--format", "{{.ServerVersion}}"],
        ["docker", "compose", "version"],
    )
    return all(_status(command, variables) == 0 for command in commands)


def provide() -> str:
    """Make `docker` respond in this process, with its own environment or with an engine below
    `WORK`. Returns why it cannot; "" if it does."""
    if responds(os.environ):
        return ""
    try:
        variables = start(WORK)
    except Missing as missing:
        return f"no Docker engine with compose responds, and none can be started: {missing}"
    os.environ.update(variables)
    return ""


def start(work: Path) -> dict[str, str]:
    """The variables of a running engine below `work`. Raises Missing."""
    _check_machine(work)
    work.mkdir(parents=True, exist_ok=True)
    with _only_one(work):
        variables = {**os.environ, **environment(work)}
        if not responds(variables):
            _install_tools(work)
            _unpack(work)
            _launch(work, variables)
    return environment(work)


def stop(work: Path) -> None:
    """End the engine, and take back what it added to the machine's network. Its data stay."""
    pid = _running(work)
    if pid is None:
        return
    variables = {**os.environ, **environment(work)}
    containers = _output(["docker", "ps", "--quiet"], variables).split()
    if containers:
        _status(["docker", "stop", "--time", "20", *containers], variables)
    os.kill(pid, signal.SIGTERM)
    _until(lambda: not Path(f"/proc/{pid}").exists(), STOP_SECONDS)
    _clean_network(work)
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        mounted = line.split()[1]
        if mounted.startswith(f"{work}/"):
            subprocess.run(["umount", "--lazy", mounted], check=False)


def _check_machine(work: Path) -> None:
    if len(str(_socket(work))) > SOCKET_PATH_MAX:
        raise Missing(f"{work} is too long a path for a socket")
    if os.geteuid() != 0:
        raise Missing("that needs root")
    if shutil.which("apt-get") is None or platform.machine() not in ("x86_64", "aarch64"):
        raise Missing("that needs Debian on amd64 or arm64")
    if _status(["unshare", "--net", "--mount", "true"]) != 0:
        raise Missing("root may not create namespaces here (a container without privileges)")


@contextmanager
def _only_one(work: Path) -> Iterator[None]:
    """Two checks at once start one engine."""
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install_tools(work: Path) -> None:
    missing = [name for name in TOOLS if _status(["dpkg", "--status", name]) != 0]
    if missing:
        _say(f"apt-get install {' '.join(missing)}")
        _run(["apt-get", "update", "-q"], work, "apt")
        # Another package manager may be at work, as on a machine that has just booted.
        wait = ("-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}")
        install = ["apt-get", *wait, "install", "-qy", "--no-install-recommends", *missing]
        _run(install, work, "apt", {"DEBIAN_FRONTEND": "noninteractive"})


def mirror() -> str:
    """The archive that this machine's apt uses."""
    for path in sorted(Path("/etc/apt").glob("sources.list*")):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for each in files:
            for word in each.read_text(errors="replace").split():
                if word.startswith("http") and word.rstrip("/").endswith("/debian"):
                    return word
    return MIRROR


def _unpack(work: Path) -> None:
    """The packages of Debian 13, with a configuration of apt of their own."""
    if (work / "root/usr/sbin/dockerd").exists():
        return
    _say("downloading Docker of Debian 13")
    apt, packages = work / "apt", work / "packages"
    for each in (apt / "state/lists/partial", apt / "cache/archives/partial", packages):
        each.mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} trixie main\n")
    (apt / "apt.conf").write_text(
        f'Dir::State "{apt}/state";\nDir::Cache "{apt}/cache";\n'
        f'Dir::Etc::sourcelist "{apt}/sources.list";\nDir::Etc::sourceparts "-";\n'
        'Dir::State::status "/var/lib/dpkg/status";\nAPT::Sandbox::User "root";\n'
    )
    configured = {"APT_CONFIG": str(apt / "apt.conf")}
    _run(["apt-get", "update", "-q"], work, "download", configured)
    _run(["apt-get", "download", "-q", *PACKAGES], work, "download", configured, packages)
    unfinished = work / "root.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, unfinished], check=True)
    # docker looks for its plug-ins in /usr and in its configuration.
    plugins = work / "config" / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    for plugin in (unfinished / "usr/libexec/docker/cli-plugins").iterdir():
        link = plugins / plugin.name
        link.unlink(missing_ok=True)
        link.symlink_to(work / "root" / plugin.relative_to(unfinished))
    unfinished.rename(work / "root")
    shutil.rmtree(packages)
    shutil.rmtree(apt)


def _launch(work: Path, variables: Mapping[str, str]) -> None:
    mtu = _link_mtu()
    forwarding = Path("/proc/sys/net/ipv4/ip_forward")
    if not (work / "ip_forward").exists():
        (work / "ip_forward").write_text(forwarding.read_text())
    for name in ("dockerd.pid", "docker.sock"):
        (work / name).unlink(missing_ok=True)
    _say("starting the engine")
    with (work / "dockerd.log").open("ab") as log:
        subprocess.Popen(
            [
                *("dockerd", "--data-root", work / "data", "--exec-root", work / "exec"),
                *("--pidfile", work / "dockerd.pid", "--host", variables["DOCKER_HOST"]),
                # The bridges carry what the machine's link does, not 1,500 bytes.
                *("--group", "root", "--mtu", mtu),
                *("--default-network-opt", f"bridge=com.docker.network.driver.mtu={mtu}"),
            ],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if not _until(lambda: responds(variables), START_SECONDS):
        raise Missing(f"dockerd does not respond; {work}/dockerd.log has the reason")


def _link_mtu() -> str:
    try:
        (route, *_) = json.loads(_output(["ip", "-json", "route", "show", "default"]))
        return Path(f"/sys/class/net/{route['dev']}/mtu").read_text().strip()
    except (ValueError, KeyError, OSError):
        return "1500"


def _clean_network(work: Path) -> None:
    for link in json.loads(_output(["ip", "-json", "link", "show", "type", "bridge"]) or "[]"):
        name = link.get("ifname", "")
        if name == "docker0" or (name.startswith("br-") and len(name) == 15):
            subprocess.run(["ip", "link", "delete", name], check=False)
    for table in ("filter", "nat"):
        rules = _output(["iptables", "-w", "-t", table, "-S"]).splitlines()
        ours = [rule for rule in rules if "DOCKER" in rule or "docker0" in rule or " br-" in rule]
        ours += [rule for rule in rules if "MASQUERADE" in rule and "172." in rule]
        for rule in dict.fromkeys(ours):
            if rule.startswith("-A "):
                _status(["iptables", "-w", "-t", table, "-D", *rule.split()[1:]])
        for rule in ours:
            if rule.startswith("-N "):
                _status(["iptables", "-w", "-t", table, "-X", rule.split()[1]])
    _status(["iptables", "-w", "-P", "FORWARD", "ACCEPT"])
    kept = work / "ip_forward"
    if kept.exists():
        Path("/proc/sys/net/ipv4/ip_forward").write_text(kept.read_text())
        kept.unlink()


def _running(work: Path) -> int | None:
    """The engine's process; the file of one that was killed names any process."""
    try:
        pid = int((work / "dockerd.pid").read_text())
        is_ours = Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd"
    except (OSError, ValueError):
        return None
    return pid if is_ours else None


def _socket(work: Path) -> Path:
    return work / "docker.sock"


def _say(words: str) -> None:
    print(f"  {words}", flush=True)


def _status(command: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    done = subprocess.run(command, env=variables, capture_output=True, timeout=60, check=False)
    return done.returncode


def _output(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout


def _run(
    command: Sequence[str],
    work: Path,
    log_name: str,
    more: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> None:
    """A command that must succeed; raises Missing with the end of its output."""
    log = work / f"{log_name}.log"
    with log.open("ab") as output:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(more or {})},
            stdout=output,
            stderr=output,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
    if done.returncode:
        words = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise Missing(f"{' '.join(command)} failed: {' '.join(words)} ({log})")


def _until(holds: object, seconds: float) -> bool:
    assert callable(holds)
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="a Docker engine for the checks of containers")
    parser.add_argument("verb", choices=("start", "env", "stop"))
    verb = parser.parse_args().verb
    if verb == "stop":
        stop(WORK)
        return 0
    if verb == "env":
        for name, value in environment().items():
            print(f"export {name}='{value}'")
        return 0
    reason = provide()
    if not reason:
        from tests.compose.base_images import provide_images

        reason = provide_images(["python", "zookeeper"])
    if reason:
        print(f"not run: {reason}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
