from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.tls.certificate_names import (
    UnknownCertificate,
    distinguished_name,
    principal_reader,
)


def certificate(*parts: tuple[str, str]) -> dict[str, Any]:
    """As `ssl.SSLSocket.getpeercert` shows a subject: the first part of the name first."""
    return {"subject": tuple((part,) for part in parts)}


WRITER = certificate(
    ("countryName", "DE"),
    ("organizationName", "acme"),
    ("organizationalUnitName", "apps"),
    ("commonName", "Writer"),
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (WRITER, "CN=Writer,OU=apps,O=acme,C=DE"),
        (certificate(("commonName", "a,b+c")), r"CN=a\,b\+c"),
        (certificate(("commonName", " x ")), r"CN=\ x\ "),
        (certificate(("commonName", "#1")), r"CN=\#1"),
        (certificate(("commonName", 'q"<>;\\')), r"CN=q\"\<\>\;\\"),
        (
            certificate(("commonName", "a"), ("emailAddress", "a@b")),
            "1.2.840.113549.1.9.1=#1603614062,CN=a",
        ),
        ({"subject": ((("commonName", "a"), ("userId", "1")),)}, "CN=a+UID=1"),
    ],
)
def test_names_are_written_as_java_writes_them(subject: dict[str, Any], name: str) -> None:
    assert distinguished_name(subject) == name


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", "CN=Writer,OU=apps,O=acme,C=DE"),
        ("", "CN=Writer,OU=apps,O=acme,C=DE"),
        ("RULE:^CN=(.*?),OU=apps.*$/$1/", "Writer"),
        ("RULE:^CN=(.*?),OU=apps.*$/$1/L", "writer"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "WRITER@APPS"),
        ("RULE:^CN=(.*?),OU=other.*$/$1/, DEFAULT", "CN=Writer,OU=apps,O=acme,C=DE"),
        ("RULE:^CN=(.*?),OU=other.*$/$1/,RULE:.*CN=(.*?),.*/u-$1/", "u-Writer"),
        ("RULE:CN=(.*)/$1$2/", "Writer,OU=apps,O=acme,C=DE$2"),
        # A rule must fit the whole name.
        ("RULE:CN=Writer/x/,DEFAULT", "CN=Writer,OU=apps,O=acme,C=DE"),
        ("RULE:.*(Reader)?.*/<$1>/", "<>"),
    ],
)
def test_rules_make_users_of_names(rules: str, user: str) -> None:
    assert principal_reader(rules)(WRITER) == Principal("User", user)


def test_without_a_certificate_no_client_is_known() -> None:
    assert str(principal_reader("RULE:x/y/")({})) == "User:ANONYMOUS"


def test_a_name_without_a_rule_is_refused() -> None:
    with pytest.raises(UnknownCertificate, match="CN=Writer"):
        principal_reader("RULE:^CN=Reader$/$0/")(WRITER)


@pytest.mark.parametrize("rules", ["RULE:a", "ROLE:a/b/", "RULE:a/b/X", "RULE:(/b/", "DEFAULT x"])
def test_ill_formed_rules_are_named(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        principal_reader(rules)
