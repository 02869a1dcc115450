"""The rules between the settings of SASL."""

from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.sasl import kerberos_options, max_reauth_ms, peer_login, plain_passwords

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PLAIN_LOGIN = "listener.name.clients.plain.sasl.jaas.config"
BASE = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
}


def config(**more: str) -> BrokerConfig:
    return BrokerConfig(BASE | more)


def test_a_listener_with_plain() -> None:
    settings = {
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
        PLAIN_LOGIN: f'{LOGIN} user_anna="x";',
    }
    made = config(**settings)
    assert plain_passwords(made, "CLIENTS") == {"anna": "x"}
    assert peer_login(made) is None
    assert max_reauth_ms(made, "CLIENTS", "PLAIN") == 0
    settings["connections.max.reauth.ms"] = "5"
    assert max_reauth_ms(config(**settings), "CLIENTS", "PLAIN") == 5
    settings["listener.name.clients.plain.connections.max.reauth.ms"] = "7"
    assert max_reauth_ms(config(**settings), "CLIENTS", "PLAIN") == 7


def test_scram_needs_no_login() -> None:
    config(**{"sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "GSSAPI and needs its keytab.* GSSAPI is the default: for another mechanism set"),
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI", PLAIN_LOGIN: f"{LOGIN};"}, "GSSAPI"),
        ({"sasl.enabled.mechanisms": ""}, "is empty"),
        ({"sasl.enabled.mechanisms": "DIGEST"}, "no SASL mechanism 'DIGEST' here, but PLAIN"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "or name a JAAS file with a KafkaServer section"),
        (
            {"sasl.enabled.mechanisms": "PLAIN", PLAIN_LOGIN: f'{LOGIN} user_a="hunter2"'},
            "does not end with a semicolon",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", PLAIN_LOGIN: f'{SCRAM} user_a="hunter2";'},
            "for PLAIN the class is",
        ),
        (
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "listener.name.clients.scram-sha-256.sasl.server.callback.handler.class": "x.Y",
            },
            "Java classes cannot be loaded",
        ),
        (
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "listener.name.clients.connections.max.reauth.ms": "soon",
            },
            "not a number of milliseconds",
        ),
        (
            {"sasl.enabled.mechanisms": "SCRAM-SHA-256", "inter.broker.listener.name": "CLIENTS"},
            "sasl.mechanism.inter.broker.protocol is GSSAPI, which is none of",
        ),
        (
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "inter.broker.listener.name": "CLIENTS",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            },
            "set listener.name.clients.scram-sha-256.sasl.jaas.config with username and password",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        config(**settings)
    assert "hunter2" not in str(raised.value)


def test_brokers_among_themselves() -> None:
    made = config(
        **{
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "inter.broker.listener.name": "CLIENTS",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            "listener.name.clients.scram-sha-256.sasl.jaas.config": (
                f'{SCRAM} username="broker" password="hunter2";'
            ),
        }
    )
    assert peer_login(made) == (
        "CLIENTS",
        "SASL_PLAINTEXT",
        "SCRAM-SHA-256",
        {"username": "broker", "password": "hunter2"},
    )


KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required"
KEYTAB = 'keyTab="/k" principal="kafka/h@R"'
GSSAPI = {
    "sasl.enabled.mechanisms": "GSSAPI",
    "listener.name.clients.gssapi.sasl.jaas.config": f"{KERBEROS} useKeyTab=true {KEYTAB};",
}


def test_kerberos() -> None:
    made = config(**GSSAPI | {"sasl.kerberos.service.name": "kafka"})
    assert kerberos_options(made, "CLIENTS")[:3] == ("kafka/h@R", "/k", "kafka")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"listener.name.clients.gssapi.sasl.jaas.config": f"{KERBEROS} useKeyTab=true;"},
            "has GSSAPI and needs its keytab",
        ),
        (
            {
                "listener.name.clients.gssapi.sasl.jaas.config": (
                    f'{KERBEROS} {KEYTAB} serviceName="other";'
                ),
                "sasl.kerberos.service.name": "kafka",
            },
            "serviceName is other, but sasl.kerberos.service.name is kafka",
        ),
        ({"inter.broker.listener.name": "CLIENTS"}, r"set sasl\.kerberos\.service\.name to"),
    ],
)
def test_kerberos_without_what_it_needs(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**GSSAPI | settings)


OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


@pytest.fixture
def jaas_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "jaas.conf"
    monkeypatch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={path}")
    return path


def test_logins_of_the_jaas_file(jaas_file: Path) -> None:
    jaas_file.write_text(
        f'KafkaServer {{ {LOGIN} user_anna="shared"; {KERBEROS} {KEYTAB} serviceName="k"; }};'
        f'clients.KafkaServer {{ {LOGIN} user_anna="own"; }};'
    )
    plain = {"sasl.enabled.mechanisms": "PLAIN"}
    assert plain_passwords(config(**plain), "CLIENTS") == {"anna": "own"}
    set_too = config(**plain, **{PLAIN_LOGIN: f'{LOGIN} user_anna="setting";'})
    assert plain_passwords(set_too, "CLIENTS") == {"anna": "setting"}
    jaas_file.write_text(jaas_file.read_text().replace("clients.", "CLIENTS."))
    assert plain_passwords(config(**plain), "CLIENTS") == {"anna": "shared"}
    made = config(**{"sasl.enabled.mechanisms": "PLAIN,GSSAPI"})
    assert kerberos_options(made, "CLIENTS")[:3] == ("kafka/h@R", "/k", "k")


def test_a_section_without_the_login_of_plain_has_no_users(jaas_file: Path) -> None:
    jaas_file.write_text(f"KafkaServer {{ {SCRAM}; }};")
    made = config(**{"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"})
    assert plain_passwords(made, "CLIENTS") == {}


def test_brokers_among_themselves_take_a_password_of_the_section(jaas_file: Path) -> None:
    """Kafka takes the first of a hash set: that of PLAIN here, though the mechanism is SCRAM."""
    jaas_file.write_text(
        f'KafkaServer {{ {KERBEROS} {KEYTAB} username="no"; {SCRAM} username="user" password="p";'
        f' {LOGIN} user_a="x" username="broker"; }};'
    )
    made = config(
        **{
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "inter.broker.listener.name": "CLIENTS",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        }
    )
    login = peer_login(made)
    assert login is not None
    assert login.options == {"username": "broker", "password": "p"}


@pytest.mark.parametrize(
    ("text", "mechanisms", "words"),
    [
        ("Client { x.Y required; };", "PLAIN", "has PLAIN and needs its users"),
        ('KafkaServer { x.Y required a="hunter2"; };', "PLAIN", r"there is no login module x\.Y"),
        ("KafkaServer {", "PLAIN", r"jaas\.conf: line 1: it does not begin with"),
        (f"KafkaServer {{ {SCRAM}; }};", "OAUTHBEARER", "section KafkaServer: for OAUTHBEARER"),
        (f"KafkaServer {{ {OAUTH}; {SCRAM}; }};", "OAUTHBEARER,PLAIN", "and no other"),
        (f"KafkaServer {{ {SCRAM}; }};", "GSSAPI", "has GSSAPI and needs its keytab"),
    ],
)
def test_what_does_not_fit_in_the_jaas_file(
    jaas_file: Path, text: str, mechanisms: str, words: str
) -> None:
    jaas_file.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        config(**{"sasl.enabled.mechanisms": mechanisms})
    assert "hunter2" not in str(raised.value)
