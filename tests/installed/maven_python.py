"""A CPython from Maven Central, for versions that neither the system nor pyenv has.

The JavaCPP presets publish CPython with its standard library as a jar for Linux on x86-64.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

from tests.installed.builds import ROOT

CACHE = ROOT / ".cache" / "pythons"
SECONDS = 300
# By version of Python, the version of org.bytedeco:cpython.
PUBLISHED = {"3.14": "3.14.3-1.5.13"}
FOLDER = "org/bytedeco/cpython/linux-x86_64/"


def fetch(version: str) -> Path | None:
    """The interpreter of a version ("3.14"); None where there is none, no Maven or no network."""
    if version not in PUBLISHED or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    home = CACHE / PUBLISHED[version]
    python = home / FOLDER / "bin" / f"python{version}"
    if not python.exists():
        jar = _download(PUBLISHED[version])
        if jar is None:
            return None
        _unpack(jar, home)
    return python


def _download(version: str) -> Path | None:
    maven = shutil.which("mvn")
    if maven is None:
        return None
    target = CACHE / "jars"
    artifact = f"org.bytedeco:cpython:{version}:jar:linux-x86_64"
    copy = ("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={target}")
    done = subprocess.run([maven, "-q", "-B", *copy], capture_output=True, timeout=SECONDS)
    return target / f"cpython-{version}-linux-x86_64.jar" if done.returncode == 0 else None


def _unpack(jar: Path, home: Path) -> None:
    """Unpacks beside `home` and renames, so that an interrupted copy is never taken for a whole."""
    partial = home.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(partial, [n for n in archive.namelist() if n.startswith(FOLDER)])
    for program in (partial / FOLDER / "bin").iterdir():
        program.chmod(0o755)
    partial.rename(home)
