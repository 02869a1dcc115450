"""Security settings and their Kafka names."""

import pytest

from ottla.protocol.client.security import Security

JAVA = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="alice" password="a \\"quoted\\" secret";'
)


def test_plaintext_is_the_default() -> None:
    security = Security.from_properties({})
    assert security.protocol == "PLAINTEXT"
    assert not security.uses_tls
    assert not security.uses_sasl


def test_settings_of_java_clients() -> None:
    security = Security.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": JAVA,
            "ssl.truststore.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "",
            "group.id": "ignored",
        }
    )
    assert (security.username, security.password) == ("alice", 'a "quoted" secret')
    assert security.mechanism == "SCRAM-SHA-256"
    assert security.ca_file == "/ca.pem"
    assert not security.check_hostname
    assert security.uses_tls
    assert security.uses_sasl


def test_settings_of_librdkafka() -> None:
    security = Security.from_properties(
        {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "bob",
            "sasl.password": "pw",
            "ssl.certificate.location": "/cert.pem",
            "ssl.key.location": "/key.pem",
            "ssl.key.password": "kp",
        }
    )
    assert (security.username, security.password) == ("bob", "pw")
    assert (security.certificate_file, security.key_file) == ("/cert.pem", "/key.pem")
    assert security.key_password == "kp"
    assert security.check_hostname


def test_unquoted_options_of_jaas() -> None:
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "Module required username=bob password=pw;",
    }
    security = Security.from_properties(properties)
    assert (security.username, security.password) == ("bob", "pw")


def test_password_is_not_shown() -> None:
    text = repr(Security("SASL_SSL", mechanism="PLAIN", username="u", password="topsecret"))
    assert "topsecret" not in text
    assert "SASL_SSL" in text


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"security.protocol": "TLS"}, "not one of PLAINTEXT"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism=None"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "user name"),
    ],
)
def test_what_cannot_work_is_refused(properties: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Security.from_properties(properties)
