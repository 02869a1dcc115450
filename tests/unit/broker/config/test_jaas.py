"""Logins as Java writes them."""

import pytest

from ottla.broker.config.jaas import parse_jaas, parse_jaas_file

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_login_with_users() -> None:
    login = parse_jaas(
        f'{PLAIN} required username="admin" password="a;b" user_admin="a;b"\n user_bob=\'x y\';'
    )
    assert login.module == PLAIN
    assert login.options == {
        "username": "admin",
        "password": "a;b",
        "user_admin": "a;b",
        "user_bob": "x y",
    }


def test_comments_escapes_and_values_without_quotation_marks() -> None:
    text = (
        f'{PLAIN} REQUIRED // the users\n /* of\nours */ user_a="\\"\\\\\\n\\101" user_b=b-_$.c ;'
    )
    assert parse_jaas(text).options == {"user_a": '"\\\nA', "user_b": "b-_$.c"}


def test_a_login_without_options() -> None:
    assert parse_jaas(f"{PLAIN} required;").options == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        PLAIN,
        f"{PLAIN} user_a=hunter2;",
        f"{PLAIN} required user_a=hunter2",
        f"{PLAIN} required user_a hunter2;",
        f"{PLAIN} required user_a=;",
        f'{PLAIN} required user_a="hunter2;',
        f"{PLAIN} required user_a=hunter2; {PLAIN} required;",
        f"{PLAIN} required {{user_a=hunter2}};",
    ],
)
def test_what_is_wrong_is_named_without_the_values(text: str) -> None:
    with pytest.raises(ValueError, match=r"it |option|quotation") as raised:
        parse_jaas(text)
    assert "hunter2" not in str(raised.value)


def test_sections_of_a_file() -> None:
    text = f"""
        // Two of them.
        KafkaServer {{ {PLAIN} required user_a="}};" ; other.Module optional; }};
        "a.KafkaServer" {{ {PLAIN} Required; }}; Empty {{ }};
    """
    found = parse_jaas_file(text)
    assert list(found) == ["KafkaServer", "a.KafkaServer", "Empty"]
    assert found["KafkaServer"] == ((PLAIN, {"user_a": "};"}), ("other.Module", {}))
    assert found["Empty"] == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A", "line 1: a section begins with"),
        ("= { };", "line 1: a section begins with"),
        ("A {\n x required; }", "line 2: a section ends with"),
        ("A {\n x required\n a=hunter2 }", "line 3: option number 2"),
        ("A {\n x required\n a=hunter2", "line 3: it does not end with a semicolon"),
        ("A { x hunter2; };", "line 1: it does not begin"),
        ("A { };\nA { };", "line 2: there is more than one section A"),
        ('A {\n x required a="hunter2', "line 2: a quotation mark"),
    ],
)
def test_an_error_in_a_file_has_a_line_and_no_value(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        parse_jaas_file(text)
    assert "hunter2" not in str(raised.value)
