"""SASL OAUTHBEARER in Java's names and in librdkafka's: where tokens are said to come from."""

import pickle

import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.oauth_options import OAuthOptions
from pyspark_ottla.options.security_options import parse_security, resolve_all
from pyspark_ottla.options.values import OptionReader

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
ENDPOINT = "https://login.example.com/oauth2/token"
SECRET = "hunter2"


def parse(jaas: str = "", **settings: str) -> OAuthOptions:
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}
    given |= {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    if jaas:
        given["kafka.sasl.jaas.config"] = f"{MODULE} {jaas};"
    oauth = parse_security(OptionReader(given)).oauth
    assert oauth is not None
    return oauth


def test_a_token_endpoint_in_both_ways_of_writing() -> None:
    java = parse(
        f'clientId="spark" clientSecret="{SECRET}" scope="kafka" extension_logicalCluster="lkc-1"',
        sasl_oauthbearer_token_endpoint_url=ENDPOINT,
        sasl_login_callback_handler_class="org.apache.kafka.common.security.oauthbearer.secured."
        "OAuthBearerLoginCallbackHandler",
    )
    plain = parse(
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_token_endpoint_url=ENDPOINT,
        sasl_oauthbearer_client_id="spark",
        sasl_oauthbearer_client_secret=SECRET,
        sasl_oauthbearer_scope="kafka",
        sasl_oauthbearer_extensions="logicalCluster=lkc-1",
    )
    newer = parse(
        sasl_oauthbearer_token_endpoint_url=ENDPOINT,
        sasl_oauthbearer_client_credentials_client_id="spark",
        sasl_oauthbearer_client_credentials_client_secret=SECRET,
        sasl_oauthbearer_scope="kafka",
        sasl_oauthbearer_extensions="logicalCluster=lkc-1",
    )
    assert java == plain == newer
    assert (java.kind, java.source, java.client_id, java.client_secret, java.scope) == (
        ("endpoint", ENDPOINT, "spark", SECRET, "kafka")
    )
    assert java.extensions == (("logicalCluster", "lkc-1"),)
    assert SECRET not in repr(java)
    assert pickle.loads(pickle.dumps(java)) == java


def test_a_secret_is_looked_up_late(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": ENDPOINT,
        "kafka.sasl.oauthbearer.client.id": "spark",
        "kafka.sasl.oauthbearer.client.secret": "${env:OTTLA_TEST_SECRET}",
    }
    options = parse_security(OptionReader(given))
    assert options.oauth is not None
    assert options.oauth.client_secret == "${env:OTTLA_TEST_SECRET}"
    monkeypatch.setenv("OTTLA_TEST_SECRET", SECRET)
    resolved = resolve_all(options).oauth
    assert resolved is not None
    assert resolved.client_secret == SECRET


def test_unsecured_tokens_a_file_and_a_function() -> None:
    unsecured = parse(
        'unsecuredLoginStringClaim_sub="anna" unsecuredLoginNumberClaim_level="3" '
        'unsecuredLoginListClaim_scope="|a|b" unsecuredLoginLifetimeSeconds="60" '
        'unsecuredLoginExtension_traceId="x"'
    )
    assert unsecured == OAuthOptions(
        "unsecured",
        extensions=(("traceId", "x"),),
        claims=(("String", "sub", "anna"), ("Number", "level", "3"), ("List", "scope", "|a|b")),
        lifetime_seconds=60,
    )
    file = parse(sasl_oauthbearer_token_endpoint_url="file:///run/secrets/token")
    assert file == OAuthOptions("file", "/run/secrets/token")
    function = parse(sasl_oauthbearer_token_function="company.login:token")
    assert function == OAuthOptions("function", "company.login:token")


@pytest.mark.parametrize(
    ("jaas", "settings", "text"),
    [
        ("", {}, "no source of tokens is set.*token.endpoint.url"),
        ("", {"sasl_oauthbearer_method": "oidc"}, "no source of tokens is set"),
        (
            "",
            {"sasl_oauthbearer_token_endpoint_url": ENDPOINT},
            "the client's id for it is not. Set kafka.sasl.oauthbearer.client.id, or clientId=",
        ),
        (
            'clientId="spark"',
            {"sasl_oauthbearer_token_endpoint_url": ENDPOINT},
            "the client's secret for it is not",
        ),
        (
            f'clientId="spark" clientSecret="{SECRET}"',
            {"sasl_oauthbearer_token_endpoint_url": "login.example.com"},
            "token.endpoint.url has the value 'login.example.com'. Expected https://",
        ),
        (
            "",
            {"sasl_oauthbearer_token_endpoint_url": f"https://me:{SECRET}@example.com/"},
            "without a user name in it",
        ),
        ("", {"sasl_oauthbearer_token_endpoint_url": "https://[:1"}, "not shown"),
        (
            "",
            {"sasl_login_callback_handler_class": "io.strimzi.JaasClientOauthLoginCallbackHandler"},
            "a Java class cannot run here. Set kafka.sasl.oauthbearer.token.endpoint.url",
        ),
        ("", {"sasl_oauthbearer_token_function": "token"}, "function as package.module:function"),
        (
            "",
            {
                "sasl_oauthbearer_token_function": "a:b",
                "sasl_oauthbearer_token_endpoint_url": ENDPOINT,
            },
            "are both set",
        ),
        (
            'unsecuredLoginStringClaim_name="anna"',
            {},
            'Add unsecuredLoginStringClaim_sub="..." to the entry',
        ),
        (
            'unsecuredLoginStringClaim_sub="anna" unsecuredLoginNumberClaim_x="y"',
            {},
            "unsecuredLoginNumberClaim_x of kafka.sasl.jaas.config",
        ),
        (
            'unsecuredLoginStringClaim_sub="anna" unsecuredLoginLifetimeSeconds="0"',
            {},
            "a whole number of seconds",
        ),
        (
            'unsecuredLoginStringClaim_sub="anna" extension_auth="x"',
            {},
            "The SASL extension 'auth' is none",
        ),
    ],
)
def test_refused_settings(jaas: str, settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConnectorError, match=text) as raised:
        parse(jaas, **settings)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.kerberos.service.name": "kafka"},
        {"kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"},
    ],
)
def test_kerberos_is_said_to_be_missing(settings: dict[str, str]) -> None:
    with pytest.raises(ConnectorError, match=r"Kerberos.*not supported.*a listener of the brokers"):
        parse_security(OptionReader({"kafka.security.protocol": "SASL_PLAINTEXT", **settings}))
