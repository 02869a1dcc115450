"""The examples are those of Kafka's documentation and of its own tests."""

from __future__ import annotations

import pytest

from ottla.broker.security.kerberos.principal_rules import (
    NoMatchingRule,
    PrincipalRules,
    replace_parameters,
)

REALM = "REALM.COM"


def short(principal: str, *rules: str) -> str:
    return PrincipalRules(rules or ("DEFAULT",), REALM).short_name(principal)


@pytest.mark.parametrize(
    ("principal", "name"),
    [
        ("App.service-name/example.com@REALM.COM", "service-name"),
        ("App.service-name@REALM.COM", "service-name"),
        ("user/host@REALM.COM", "user"),
        ("user@REALM.COM", "user"),
        ("user", "user"),
    ],
)
def test_substitution_and_default(principal: str, name: str) -> None:
    rules = (r"RULE:[1:$1](App\..*)s/App\.(.*)/$1/g", r"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g")
    assert short(principal, *rules, "DEFAULT") == name


@pytest.mark.parametrize(
    ("principal", "lower"),
    [
        ("User@REALM.COM", "user"),
        ("TestABC/host@FOO.COM", "test"),
        ("ABC_User_ABC/host@FOO.COM", "xyz_user_xyz"),
        ("App.SERVICE-name/example.com@REALM.COM", "service-name"),
        ("User/root@REALM.COM", "user"),
    ],
)
def test_case(principal: str, lower: str) -> None:
    def rules(case: str) -> list[str]:
        return [
            f"RULE:[1:$1]/{case}",
            f"RULE:[2:$1](Test.*)s/ABC///{case}",
            f"RULE:[2:$1](ABC.*)s/ABC/XYZ/g/{case}",
            rf"RULE:[2:$1](App\..*)s/App\.(.*)/$1/g/{case}",
            f"RULE:[2:$1]/{case}",
            "DEFAULT",
        ]

    assert short(principal, *rules("L")) == lower
    assert short(principal, *rules("U")) == lower.upper()


def test_the_example_of_the_documentation() -> None:
    rules = (r"RULE:[1:$1@$0](.*@MYDOMAIN.COM)s/@.*//", "DEFAULT")
    assert short("user@MYDOMAIN.COM", *rules) == "user"
    assert short("user@REALM.COM", *rules) == "user"
    with pytest.raises(NoMatchingRule, match=r"applies to 'user@OTHER\.COM'"):
        short("user@OTHER.COM", *rules)


@pytest.mark.parametrize(
    "rule",
    [
        *("default", "DEFAUL", "DEFAULT/L", "DEFAULT/g", "rule:[1:$1]", "rule:[1:$1]/L/U"),
        *("rule:[1:$1]/U/L", "rule:[1:$1]/LU", "RULE:[1:$1/L", "RULE:[1:$1]/l", ""),
        *("RULE:[2:$1](ABC.*)s/ABC/XYZ/L/g", "RULE:[:$1]", "RULE:[1:$1]([)", "RULE:[9999:$1]"),
    ],
)
def test_rules_that_are_not_valid(rule: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        PrincipalRules([rule], REALM)


@pytest.mark.parametrize(
    ("principal", "rule", "words"),
    [
        ("a/b/c@REALM.COM", "DEFAULT", "malformed"),
        ("a@b@c", "DEFAULT", "malformed"),
        ("user@OTHER.COM", "DEFAULT", "no rule"),
        ("user@REALM.COM", "RULE:[1:$1@$0]", "which has / or @ in it"),
        ("user@REALM.COM", "RULE:[1:$2]", "is no part of the principal"),
        ("user@REALM.COM", "RULE:[1:$1]s/user/$1/", "no such group"),
    ],
)
def test_no_user_is_made(principal: str, rule: str, words: str) -> None:
    with pytest.raises(NoMatchingRule, match=words):
        short(principal, rule)


@pytest.mark.parametrize(
    ("text", "parameters", "expected"),
    [
        ("", [], ""),
        ("hello", [], "hello"),
        ("hello", ["too", "many"], "hello"),
        ("hello $0", ["too", "many"], "hello too"),
        ("hello $0", ["no recursion $1"], "hello no recursion $1"),
    ],
)
def test_parameters(text: str, parameters: list[str], expected: str) -> None:
    assert replace_parameters(text, parameters) == expected


@pytest.mark.parametrize(("text", "parameters"), [("$0", []), ("hello $a", ["does not matter"])])
def test_parameters_that_are_missing(text: str, parameters: list[str]) -> None:
    with pytest.raises(NoMatchingRule):
        replace_parameters(text, parameters)
