"""TLS and SASL in Java's names and in librdkafka's; secrets stay where they belong."""

from pathlib import Path

import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.oauth_options import OAuthOptions
from pyspark_ottla.options.security_options import (
    SecurityOptions,
    parse_jaas,
    parse_security,
    resolve,
    resolve_all,
)
from pyspark_ottla.options.values import OptionReader

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def parse(**settings: str) -> SecurityOptions:
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}
    return parse_security(OptionReader(given))


def text_of(**settings: str) -> str:
    with pytest.raises(ConnectorError) as raised:
        parse(**settings)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (f'{PLAIN} required username="a" password="b";', {"username": "a", "password": "b"}),
        (
            f'  {PLAIN}  required\n username="a"\n password="b" ; ',
            {"username": "a", "password": "b"},
        ),
        (f'{PLAIN} required username=a password="x;y=z";', {"username": "a", "password": "x;y=z"}),
        (f'{PLAIN} required password="say \\"hi\\" \\\\o/"', {"password": 'say "hi" \\o/'}),
        (f"{PLAIN} required;", {}),
    ],
)
def test_jaas_entries(text: str, entries: dict[str, str]) -> None:
    assert parse_jaas(text, "o") == (PLAIN, entries)


@pytest.mark.parametrize("text", ["", "nonsense", f'{PLAIN} required username="a password=b;'])
def test_broken_jaas_entries_are_not_shown(text: str) -> None:
    with pytest.raises(ConnectorError) as raised:
        parse_jaas(text + " password=hunter2", "kafka.sasl.jaas.config")
    assert "kafka.sasl.jaas.config" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "mechanism"),
    [
        (PLAIN, "PLAIN"),
        (SCRAM, "SCRAM-SHA-256"),
        (SCRAM, "SCRAM-SHA-512"),
        (f"kafkashaded.{PLAIN}", "PLAIN"),
    ],
)
def test_jaas_login_modules(module: str, mechanism: str) -> None:
    options = parse(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_jaas_config=f'{module} required username="u" password="p";',
    )
    assert (options.mechanism, options.username, options.password) == (mechanism, "u", "p")


def test_credentials_in_librdkafkas_names() -> None:
    options = parse(
        security_protocol="sasl_ssl",
        sasl_mechanisms="SCRAM-SHA-512",
        sasl_username="u",
        sasl_password="p",
        ssl_ca_location="/ca.pem",
    )
    assert options == SecurityOptions(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        username="u",
        password="p",
        ca_location="/ca.pem",
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"security_protocol": "TLS"},
            "[INVALID_OPTION] The option kafka.security.protocol has the value 'TLS'. "
            "Expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL.",
        ),
        (
            {"security_protocol": "SASL_SSL"},
            "[MISSING_OPTION] kafka.security.protocol is a SASL one, but kafka.sasl.mechanism is "
            "not set. Set kafka.sasl.mechanism with kafka.sasl.username and kafka.sasl.password, "
            "or kafka.sasl.jaas.config.",
        ),
        (
            {"sasl_password": "hunter2"},
            "[CONFLICTING_OPTIONS] SASL credentials are given, but kafka.security.protocol is "
            "PLAINTEXT. Set kafka.security.protocol to SASL_SSL (or SASL_PLAINTEXT on a trusted "
            "network).",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": f'{SCRAM} required username="u" password="hunter2";',
            },
            "[CONFLICTING_OPTIONS] The login module ScramLoginModule of kafka.sasl.jaas.config "
            "does not fit kafka.sasl.mechanism PLAIN. Set kafka.sasl.mechanism to SCRAM-SHA-256 "
            "or SCRAM-SHA-512.",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": "com.example.OurLoginModule required;",
            },
            "[UNSUPPORTED_OPTION] The option kafka.sasl.jaas.config uses the login module "
            "OurLoginModule, which is not supported. Supported are PlainLoginModule, "
            "ScramLoginModule, OAuthBearerLoginModule.",
        ),
        (
            {"security_protocol": "SSL", "ssl_truststore_location": "/t.jks"},
            "[UNSUPPORTED_OPTION] The option kafka.ssl.truststore.location names a Java key store "
            "(JKS), which only Java reads. Export it as PEM (keytool -importkeystore, openssl "
            "pkcs12) and use kafka.ssl.ca.location or kafka.ssl.ca.pem.",
        ),
        (
            {"ssl_endpoint_identification_algorithm": "ldaps"},
            "[INVALID_OPTION] The option kafka.ssl.endpoint.identification.algorithm has the value "
            "'ldaps'. Expected https, or none (or empty) for no check.",
        ),
    ],
)
def test_refused_settings(settings: dict[str, str], text: str) -> None:
    assert text_of(**settings) == text


def test_pem_stores_in_javas_names() -> None:
    options = parse(
        security_protocol="SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_location="/ca.pem",
        ssl_keystore_type="pem",
        ssl_keystore_location="/me.pem",
        ssl_key_password="k",
    )
    assert options.ca_location == "/ca.pem"
    assert (options.certificate_location, options.key_location) == ("/me.pem", "/me.pem")
    assert options.check_hostname


def test_an_empty_algorithm_turns_the_host_name_check_off() -> None:
    assert not parse(ssl_endpoint_identification_algorithm="").check_hostname
    assert not parse(ssl_endpoint_identification_algorithm="none").check_hostname


def test_references_are_looked_up_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("user = anna\npassword=p=w\n", encoding="utf-8")
    monkeypatch.setenv("OTTLA_TEST_USER", "eva")
    options = SecurityOptions(
        protocol="SASL_SSL",
        username="${env:OTTLA_TEST_USER}",
        password=f"${{file:{secrets}:password}}",
    )
    assert resolve_all(options).username == "eva"
    assert resolve_all(options).password == "p=w"
    assert resolve(f"<${{file:{secrets}:user}}>") == "<anna>"
    whole = tmp_path / "whole"
    whole.write_text("token\n", encoding="utf-8")
    assert resolve(f"${{file:{whole}}}") == "token"


def test_references_in_extensions_and_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_TEST_POOL", "pool-7")
    oauth = OAuthOptions(
        extensions=(("identityPoolId", "${env:OTTLA_TEST_POOL}"), ("logicalCluster", "lkc-1")),
        claims=(("String", "sub", "${env:OTTLA_TEST_POOL}"),),
    )
    found = resolve_all(SecurityOptions(protocol="SASL_SSL", oauth=oauth)).oauth
    assert found is not None
    assert found.extensions == (("identityPoolId", "pool-7"), ("logicalCluster", "lkc-1"))
    assert found.claims == (("String", "sub", "pool-7"),)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("${env:OTTLA_NOT_SET}", "environment variable OTTLA_NOT_SET, which is not set"),
        ("${file:/not/there:key}", "file /not/there, which cannot be read"),
    ],
)
def test_references_that_lead_nowhere(text: str, what: str) -> None:
    with pytest.raises(ConnectorError, match=what):
        resolve(text)


def test_a_reference_to_a_file_that_is_no_text(tmp_path: Path) -> None:
    store = tmp_path / "store.p12"
    store.write_bytes(b"\x30\x82\xff\xfe")
    with pytest.raises(ConnectorError, match=r"store\.p12, which cannot be read: it is no text"):
        resolve(f"${{file:{store}}}")
