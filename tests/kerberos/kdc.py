"""A Kerberos realm of its own: MIT's KDC on a free port of this machine, with keytabs.

The programs come from the system (Debian: krb5-kdc, krb5-admin-server), or from packages that
`tools/kerberos.py` unpacks below `.cache/kerberos`, without rights of an administrator.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.doubles.eventually import eventually

REALM = "OTTLA.TEST"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kerberos"

_KRB5_CONF = """[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
[domain_realm]
  localhost = {realm}
"""
_KDC_CONF = """[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    acl_file = {folder}/acl
    max_life = {max_life}
  }}
[dbmodules]
  db_module_dir = {modules}
  {realm} = {{
    db_library = db2
    database_name = {folder}/principal
  }}
"""


class Kdc:
    """A running realm. `environment` is for every program that participates."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.krb5_conf = folder / "krb5.conf"

    def keytab(self, principal: str, max_life: str = "") -> Path:
        """Adds a principal; a file with its key."""
        path = self.folder / f"{principal.replace('/', '_')}.keytab"
        options = f"-maxlife {max_life} " if max_life else ""
        _run(self.environment, "kadmin.local", "-q", f"addprinc -randkey {options}{principal}")
        _run(self.environment, "kadmin.local", "-q", f"ktadd -k {path} {principal}")
        return path

    def client_environment(self, principal: str) -> dict[str, str]:
        """For a program that authenticates as `principal`, whose keytab exists."""
        keytab = self.folder / f"{principal.replace('/', '_')}.keytab"
        return {
            **self.environment,
            "KRB5_CLIENT_KTNAME": f"FILE:{keytab}",
            "KRB5CCNAME": f"FILE:{keytab}.ccache",
        }


def program(name: str) -> str:
    """The path of a program of MIT Kerberos. Raises FileNotFoundError."""
    unpacked = [str(CACHE / "usr" / folder) for folder in ("sbin", "bin")]
    found = shutil.which(name, path=os.pathsep.join(["/usr/sbin", "/usr/bin", *unpacked]))
    if found is None:
        raise FileNotFoundError(f"{name} of MIT Kerberos: run python tools/kerberos.py")
    return found


def _run(environment: dict[str, str], name: str, *arguments: str) -> None:
    done = subprocess.run(
        [program(name), *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{name} {arguments}: {done.stdout}{done.stderr}"


def _module_folder() -> Path:
    for root in (Path("/"), CACHE):
        for found in sorted((root / "usr" / "lib").glob("*/krb5/plugins/kdb")):
            return found
    raise FileNotFoundError("the database module of MIT Kerberos")


@contextmanager
def start_kdc(folder: Path, max_life: str = "1h") -> Iterator[Kdc]:
    """A KDC whose tickets live for `max_life` at most."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {"realm": REALM, "port": port, "folder": folder, "max_life": max_life}
    (folder / "krb5.conf").write_text(_KRB5_CONF.format(**names))
    (folder / "kdc.conf").write_text(_KDC_CONF.format(**names, modules=_module_folder()))
    libraries = sorted((CACHE / "usr" / "lib").glob("*-linux-gnu"))
    environment = {
        **os.environ,
        "KRB5_CONFIG": str(folder / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        "KRB5RCACHENAME": f"dfl:{folder}",
        "KRB5CCNAME": f"FILE:{folder}/ccache",
        **({"LD_LIBRARY_PATH": str(libraries[0])} if libraries else {}),
    }
    _run(environment, "kdb5_util", "create", "-s", "-P", "master")
    with (folder / "kdc.log").open("ab") as log:
        process = subprocess.Popen(
            [program("krb5kdc"), "-n"], env=environment, stdout=log, stderr=log
        )
    try:
        eventually(lambda: _listens(port), "the KDC does not listen", seconds=30)
        yield Kdc(folder, environment)
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
