"""Unpacks MIT Kerberos below `.cache/kerberos`, for `make compat-kerberos` on Debian and Ubuntu.

    python tools/kerberos.py

Nothing is installed: `apt-get download` needs no rights of an administrator. A system that has the
KDC (krb5-kdc) and python-gssapi already is left as it is. python-gssapi is built against the
unpacked headers, which takes a C compiler.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "kerberos"
PACKAGES = (
    *("krb5-kdc", "krb5-admin-server", "krb5-user", "libkrb5-dev", "krb5-multidev"),
    *("libkadm5srv-mit12", "libkadm5clnt-mit12", "libkdb5-10", "libgssrpc4", "libverto1"),
    *("libverto-libev1", "libev4", "comerr-dev", "libss2"),
)


def main() -> int:
    """Returns 0 when everything that the scenarios need is there."""
    if not _has_kdc():
        problem = _unpack()
        if problem:
            print(problem, file=sys.stderr)
            return 1
    if importlib.util.find_spec("gssapi") is None:
        return _install_gssapi()
    return 0


def _has_kdc() -> bool:
    paths = ("/usr/sbin", str(CACHE / "usr" / "sbin"))
    return shutil.which("krb5kdc", path=os.pathsep.join(paths)) is not None


def _unpack() -> str:
    """Words for what went wrong; empty when it is done."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "MIT Kerberos is not here, and this system has no apt-get: install a KDC (krb5-kdc)."
    archives = CACHE / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        done = subprocess.run(
            ["apt-get", "download", name], cwd=archives, capture_output=True, text=True
        )
        if done.returncode != 0:
            print(f"no package {name}: {done.stderr.strip()}", file=sys.stderr)
    for archive in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(archive), str(CACHE)], check=True)
    if not _has_kdc():
        return "the packages of MIT Kerberos cannot be downloaded: run apt-get update first."
    return ""


def _install_gssapi() -> int:
    """python-gssapi against the headers of the system, or the unpacked ones."""
    environment = dict(os.environ)
    headers = CACHE / "usr" / "include"
    if shutil.which("krb5-config") is None and headers.exists():
        libraries = next((CACHE / "usr" / "lib").glob("*-linux-gnu"))
        folders = [headers, *sorted(headers.glob("mit-krb5"))]
        arguments = [*(f"-I{each}" for each in folders), "-DHAS_GSSAPI_EXT_H"]
        environment["GSSAPI_COMPILER_ARGS"] = " ".join(arguments)
        environment["GSSAPI_LINKER_ARGS"] = (
            f"-L{libraries}/mit-krb5 -L{libraries} -l:libgssapi_krb5.so.2"
        )
        environment["GSSAPI_MAIN_LIB"] = _library("libgssapi_krb5.so.2")
    command = [sys.executable, "-m", "pip", "install", "gssapi>=1.8"]
    return subprocess.run(command, env=environment).returncode


def _library(name: str) -> str:
    for folder in ("/usr/lib", "/lib"):
        for found in sorted(Path(folder).glob(f"*-linux-gnu/{name}")):
            return str(found)
    return name


if __name__ == "__main__":
    raise SystemExit(main())
