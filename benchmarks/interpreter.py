"""The Python of the broker's process, which `--python PATH` chooses, and how it was built.

An interpreter with profile-guided and link-time optimisation is 1.1 to 1.4 times as fast as one
without, so a figure without the options of the build means little.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".cache" / "bench" / "pythons"
_PACKAGES = ("protocol", "storage", "controller", "broker", "cli")
_SECONDS = 600

# Runs in the interpreter that is asked, with nothing installed.
_ASK = """
import json, platform, sys, sysconfig
get = lambda name: str(sysconfig.get_config_var(name) or "")
flags = " ".join(map(get, ("PY_CORE_CFLAGS", "PY_CFLAGS_NODIST", "PY_LDFLAGS_NODIST", "LDFLAGS")))
try:
    import uvloop
    loop = "uvloop " + uvloop.__version__
except ImportError:
    loop = "asyncio"
jit = getattr(sys, "_jit", None)
print(json.dumps({
    "version": platform.python_version(),
    "arguments": get("CONFIG_ARGS"),
    "flags": flags,
    "debug": bool(sysconfig.get_config_var("Py_DEBUG")),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "debian": "deb_system" in sysconfig.get_scheme_names(),
    "jit": None if jit is None or not jit.is_available() else jit.is_enabled(),
    "loop": loop,
}))
"""


class NotUsable(Exception):
    """The interpreter does not start, or has no wheels of what the broker needs."""


class Build(NamedTuple):
    """The facts of an interpreter from `sysconfig`. `jit` is None without a JIT."""

    version: str
    arguments: str
    flags: str
    debug: bool
    free_threaded: bool
    jit: bool | None
    loop: str
    #: A package of Debian or a descendant: built with both options, which it removes from the
    #: flags that `sysconfig` has.
    debian: bool = False

    def options(self) -> list[str]:
        """The options of the build that decide on its speed."""
        given = self.arguments
        pgo = "--enable-optimizations" in given or "-fprofile-use" in self.flags
        lto = "--with-lto" in given or "-flto" in self.flags
        found = ["PGO" if pgo else "no PGO", "LTO" if lto else "no LTO"]
        if self.debian and not pgo:
            found = ["a package of Debian: PGO, LTO"]
        if "--with-tail-call-interp" in given:
            found.append("tail calls")
        if self.jit is not None:
            found.append("JIT" if self.jit else "JIT off")
        if self.free_threaded:
            found.append("free-threaded")
        if self.debug:
            found.append("debug")
        return found

    def __str__(self) -> str:
        return f"Python {self.version} ({', '.join(self.options())}), {self.loop}"


def build_of(python: str | Path) -> Build:
    """Ask an interpreter, or a program that starts one. Raises NotUsable."""
    try:
        done = _run([python, "-c", _ASK])
        return Build(**json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NotUsable(f"{python} does not start: {error}") from None


def with_packages(python: Path) -> Path:
    """The interpreter itself, if it has what the broker imports; otherwise that of a virtual
    environment, which is kept. Raises NotUsable."""
    build = build_of(python)
    if _imports(python):
        return python
    name = "-".join([build.version, *build.options()]).replace(" ", "-")
    environment = ENVIRONMENTS / name
    inside = environment / "bin" / "python"
    if inside.exists() and _imports(inside):
        return inside
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for command in (
        [python, "-m", "venv", "--clear", environment],
        [inside, "-m", "pip", "install", "-q", "--only-binary", ":all:", *wanted],
    ):
        done = _run(command, check=False)
        if done.returncode:
            raise NotUsable(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
    if not _imports(inside):
        raise NotUsable(f"{inside} cannot import the broker")
    return inside


def start_command(python: Path) -> list[str]:
    """`ottla start` of the checkout that `environment` names."""
    return [str(python), "-m", "ottla.cli.main", "start"]


def environment(checkout: Path = ROOT) -> dict[str, str]:
    """Of a broker's process: the checkout, whose bytecode may be written."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(checkout)}


def compile_packages(python: Path, checkout: Path = ROOT) -> None:
    """Write the bytecode, which an installed package has."""
    folders = [str(checkout / each) for each in _PACKAGES]
    _run([python, "-m", "compileall", "-q", *folders])


def describe(python: Path) -> str:
    """The broker's interpreter, and that of the clients if it is another one."""
    broker = str(build_of(python))
    clients = str(build_of(sys.executable))
    return broker if broker == clients else f"{broker}; clients: {clients}"


def _imports(python: Path) -> bool:
    names = "ottla.cli.main, ottla.broker.server.handlers, kazoo.client"
    return _run([python, "-c", f"import {names}"], check=False).returncode == 0


def _run(command: Sequence[str | Path], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(each) for each in command],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=check,
    )
