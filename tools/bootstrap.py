"""Create the project's environment in .venv and install what it needs; nothing outside the folder.

Runs on the standard library alone with any Python 3.11 or newer. Called by the Makefile whenever
pyproject.toml changed since the last time.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from java import privilege  # its neighbour in tools/, which is where this script runs from

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv"
PYTHON_MIN = (3, 11)


def fail(sentence: str) -> None:
    print(f"ottla: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def create_with_virtualenv() -> bool:
    """Debian's bare python3 has no ensurepip; virtualenv brings its own when pip is there."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        return False
    target = ROOT / ".cache" / "virtualenv"
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), "virtualenv"]
    if subprocess.run(install).returncode:
        return False
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import virtualenv; "
    code += f"virtualenv.cli_run([{str(ENVIRONMENT)!r}])"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


def install_debian_venv() -> bool:
    """Debian and Ubuntu keep ensurepip in python3-venv; install it without a prompt."""
    prefix = privilege(os.environ)
    if shutil.which("apt-get") is None or prefix is None:
        return False
    print("ottla: installing the Debian package python3-venv")
    command = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    subprocess.run([*command, "update"], capture_output=True)
    options = ["--no-install-recommends", "install", "python3-venv"]
    return subprocess.run([*command, *options], capture_output=True).returncode == 0


def create_with_venv() -> bool:
    command = [sys.executable, "-m", "venv", str(ENVIRONMENT)]
    if subprocess.run(command, capture_output=True).returncode == 0:
        return True
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    return False


def create_environment() -> None:
    if (ENVIRONMENT / "bin" / "python").exists():
        return
    print("ottla: creating .venv")
    if create_with_venv() or create_with_virtualenv():
        return
    if install_debian_venv() and create_with_venv():
        return
    fail(
        "this Python cannot create environments; install its venv module "
        "(on Debian and Ubuntu: apt-get install python3-venv) and run the command again"
    )


def main() -> None:
    if sys.version_info < PYTHON_MIN:
        fail(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; "
            "run make with PYTHON=/path/to/a/newer/python3"
        )
    create_environment()
    python = str(ENVIRONMENT / "bin" / "python")
    print("ottla: installing the project and its tools into .venv (the first time takes a while)")
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    # An old pip builds pyspark in a way that it warns about itself.
    subprocess.run([*install, "--upgrade", "pip"], capture_output=True)
    # pip's and setuptools' remarks about an editable install say nothing to a user.
    done = subprocess.run(
        [*install, "-e", f"{ROOT}[spark,dev]"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        fail("installing the packages failed; pip's message above says why")
    (ENVIRONMENT / ".installed").touch()


if __name__ == "__main__":
    main()
