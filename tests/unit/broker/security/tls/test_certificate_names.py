"""`tests/golden/identity` compares with Java; these are the cases that explain themselves."""

from __future__ import annotations

import time

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.requests.request_context import Principal
from ottla.broker.security.tls.certificate_names import principal_reader
from ottla.broker.security.tls.distinguished_names import distinguished_name, subject_of
from ottla.broker.security.tls.mapping_rules import MappingRules, NoMatchingRule
from tests.doubles import odd_subjects
from tests.doubles.odd_subjects import BMP, IA5, T61, UTF8, element, simple, subject, text_value

WRITER = odd_subjects.certificate(
    simple(("C", "DE"), ("O", "acme"), ("OU", "apps"), ("CN", "Writer"))
)
NAME = "CN=Writer,OU=apps,O=acme,C=DE"


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (simple(("C", "DE"), ("CN", "Writer")), "CN=Writer,C=DE"),
        (simple(("CN", "a,b+c")), r"CN=a\,b\+c"),
        (simple(("CN", "  x ")), r"CN=\ \ x\ "),
        (simple(("CN", "#1")), r"CN=\#1"),
        (simple(("CN", "a=b#c")), r"CN=a\=b\#c"),
        (simple(("CN", 'q"<>;\\')), r"CN=q\"\<\>\;\\"),
        (simple(("CN", "a\0b")), r"CN=a\00b"),
        (simple(("CN", "")), "CN="),
        (subject(), ""),
        (simple(("2.5.4.5", "7")), "2.5.4.5=#0c0137"),
        (
            subject(
                [("2.5.4.3", text_value(UTF8, "a"))], [(odd_subjects.EMAIL, text_value(IA5, "a@b"))]
            ),
            "1.2.840.113549.1.9.1=#1603614062,CN=a",
        ),
        (
            subject([("2.5.4.3", text_value(UTF8, "a")), ("2.5.4.11", text_value(UTF8, "b"))]),
            "CN=a+OU=b",
        ),
        # A type that is no text, and types whose bytes are read as UTF-8.
        (subject([("2.5.4.3", element(0x02, b"\x05"))]), "CN=#020105"),
        (simple(("CN", "ab"), tag=BMP), r"CN=\00a\00b"),
        (simple(("CN", "é"), tag=T61), "CN=\ufffd"),
    ],
)
def test_names_are_written_as_java_writes_them(parts: bytes, name: str) -> None:
    assert distinguished_name(subject_of(odd_subjects.certificate(parts))) == name


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        (None, NAME),
        ("RULE:^CN=(.*?),OU=apps.*$/$1/", "Writer"),
        ("RULE:^CN=(.*?),OU=apps.*$/$1/L", "writer"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "WRITER@APPS"),
        ("RULE:^CN=(.*?),OU=other.*$/$1/, DEFAULT", NAME),
        ("RULE:^CN=(.*?),OU=other.*$/$1/,RULE:.*CN=(.*?),.*/u-$1/", "u-Writer"),
        ("RULE:CN=(.*)/$1$2/", "Writer,OU=apps,O=acme,C=DE$2"),
        # A rule must fit the whole name, and then replaces each match in it.
        ("RULE:CN=Writer/x/,DEFAULT", NAME),
        ("RULE:CN=([^,]*).*?/$1/", "Writer,OU=apps,O=acme,C=DE"),
        ("RULE:(.*)/$1;/", f"{NAME};;"),
        ("RULE:^CN=(?<who>\\p{L}+),.*$/${who}/", "Writer"),
        ("RULE:^CN=(\\w++),.*$/\\$1/", "$1"),
        ("RULE:.*(Reader)?.*/<$1>/", "<><>"),
        (",,DEFAULT,", NAME),
    ],
)
def test_rules_make_users_of_names(rules: str | None, user: str) -> None:
    read = principal_reader(rules)
    assert read(WRITER) == Principal("User", user)
    assert read(WRITER) is read(WRITER)


def test_without_a_certificate_no_client_is_known() -> None:
    assert str(principal_reader("RULE:x/y/")(b"")) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    "rules", ["RULE:^CN=Reader$/$0/", "", "RULE:.*/$x/", "RULE:(?<a>.*)/${b}/"]
)
def test_a_name_without_a_user_is_refused(rules: str) -> None:
    with pytest.raises(NoMatchingRule, match="CN=Writer"):
        principal_reader(rules)(WRITER)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("RULE:a", "at position 0"),
        ("ROLE:a/b/", "'ROLE:a/b/' at position 0"),
        ("RULE:a/b/X", "'X' at position 9"),
        ("RULE:(/b/", "unclosed group at position 5"),
        ("DEFAULT x", "' x' at position 7"),
        ("RULE:a\\p{InGreek}/b/", "property InGreek is not supported at position 8"),
        ("DEFAULT,RULE:(?u)x/b/", "the flag u is not supported at position 7"),
    ],
)
def test_ill_formed_rules_are_named(rules: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules") as raised:
        principal_reader(rules)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("RULE:(a+)+$/x/", "a" * 5000 + "!"),
        ("RULE:(a|aa)*b/x/", "a" * 5000),
        ("RULE:(a*)*b/x/", "a" * 5000),
        ("RULE:(.*)(.*)(.*)(.*)(.*)=x/x/", "a" * 5000),
        ("RULE:(?=(a+))*\\1b/x/", "a" * 5000),
    ],
)
def test_a_hostile_name_costs_little(rule: str, name: str) -> None:
    """Java would take years for some of these: the bound is that of a broken limit."""
    rules = MappingRules(rule)
    start = time.process_time()
    with pytest.raises(NoMatchingRule):
        rules.user_of(name)
    assert time.process_time() - start < 2
