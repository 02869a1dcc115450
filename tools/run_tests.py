"""Run the whole test suite as users run it; the asyncio parts once more in debug mode, the record
modules once more compiled.

Java is found (or installed) first, because Spark, ZooKeeper and Apache Kafka need it; a machine on
which none can be had is told so in one sentence before any work is done.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What runs a second time with asyncio's debug mode: slow callbacks, un-awaited coroutines and
# calls from the wrong thread become visible there.
DEBUG_PATHS = ("tests/unit/broker", "tests/unit/controller")


def find_java() -> str | None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "java.py")], stdout=subprocess.PIPE, text=True
    )
    if found.returncode:
        raise SystemExit(found.returncode)
    return found.stdout.strip().splitlines()[-1] if found.stdout.strip() else None


def run_pytest(arguments: list[str], extra_environment: dict[str, str]) -> None:
    environment = {**os.environ, **extra_environment}
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    completed = subprocess.run(command, cwd=ROOT, env=environment)
    if completed.returncode:
        raise SystemExit(completed.returncode)


def check_compiled() -> None:
    """The record modules compiled with mypyc pass the same tests, where there is a compiler."""
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which("cc") is None or not headers.exists():
        print("the compiled record modules are not tested: no C compiler or no Python headers")
        return
    command = [sys.executable, str(ROOT / "tools" / "compile.py"), "--check"]
    completed = subprocess.run(command, cwd=ROOT)
    if completed.returncode:
        raise SystemExit(completed.returncode)


def main() -> None:
    java_home = find_java()
    environment = {"JAVA_HOME": java_home} if java_home else {}
    check_compiled()
    run_pytest(list(DEBUG_PATHS), {**environment, "PYTHONASYNCIODEBUG": "1"})
    run_pytest(["--durations=15", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
