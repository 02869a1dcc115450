"""What can be tested without a KDC; `make compat-kerberos` has one."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.security.kerberos import login as module
from ottla.broker.security.kerberos.login import KerberosLogin, RenewalRules


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, *arguments: Any) -> Any:
        if name == "gssapi":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ConfigError, match=r"a\.setting: .* pip install 'ottla\[kerberos\]'"):
        KerberosLogin("kafka/h@R", "/k", "kafka", RenewalRules(), "a.setting")


class Credentials:
    """As of python-gssapi; `made` counts the tickets."""

    made: ClassVar[list[dict[str, object]]] = []
    lifetime = 100

    def __init__(self, **arguments: object) -> None:
        self.made.append(arguments)


class Library:
    """Just enough of python-gssapi."""

    Credentials = Credentials
    RequirementFlag = type("Flags", (), {"mutual_authentication": 2, "integrity": 32})
    MechType = type("Mechanisms", (), {"kerberos": "krb5"})
    NameType = type("Names", (), {"kerberos_principal": "p", "hostbased_service": "s"})
    exceptions = type("Exceptions", (), {"GSSError": type("GSSError", (Exception,), {})})

    def Name(self, text: str, kind: str) -> str:  # noqa: N802 - the library's name
        return f"{kind}:{text}"

    def SecurityContext(self, **arguments: Any) -> Any:  # noqa: N802
        return type("Context", (), {"arguments": arguments})


def test_a_new_ticket_is_taken_before_the_last_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keytab = tmp_path / "keytab"
    keytab.write_bytes(b"")
    monkeypatch.setattr(importlib, "import_module", lambda name: Library())
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    Credentials.made.clear()
    login = KerberosLogin(
        "kafka/h@R", str(keytab), "kafka", RenewalRules(0.8, 0.05, 60.0), "a.setting"
    )
    accepting = len(Credentials.made)
    for seconds, tickets in [(0, 1), (79, 1), (6, 2), (0, 2)]:
        now[0] += seconds
        login.initiate("broker-1")
        assert len(Credentials.made) - accepting == tickets
    caches = {str(each["store"]) for each in Credentials.made}
    assert len(caches) == len(Credentials.made), "each ticket has a cache of its own"
