"""Reading and writing with SASL, with credentials as users write them; wrong ones fail at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pyspark.sql import SparkSession

from tests.doubles.apache_kafka import start_kafka
from tests.doubles.tokens import TokenEndpoint, token_endpoint
from tests.spark.support import Sent, create_topic, load, write

pytestmark = pytest.mark.kafka

TOPIC = "guarded"
PASSWORD = "hunter2;=x"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a listener with SASL, of a broker with one topic of two records."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter_broker_listener_name": "PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "listener_name_clients_plain_sasl_jaas_config": f'{PLAIN} user_anna="{PASSWORD}";',
        "listener_name_clients_oauthbearer_sasl_jaas_config": f"{BEARER};",
        "listener_name_clients_scram-sha-512_sasl_jaas_config": f"{SCRAM};",
    }
    with start_kafka(tmp_path_factory.mktemp("guarded"), **settings) as kafka:
        ports = re.findall(r"Awaiting socket connections on 127\.0\.0\.1:(\d+)", kafka.output())
        plaintext, clients = (f"127.0.0.1:{port}" for port in ports)
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion("anna", credentials, PASSWORD.encode())
        admin = AdminClient({"bootstrap.servers": plaintext})
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result()
        create_topic(plaintext, TOPIC)
        write(plaintext, TOPIC, [Sent(b"1"), Sent(b"2")])
        yield clients


def credentials(mechanism: str, password: str = PASSWORD) -> list[dict[str, str]]:
    """The same credentials in Java's way and in librdkafka's."""
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    base = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": mechanism}
    jaas = f'{module} username="anna" password="{password}";'
    separate = {"kafka.sasl.username": "anna", "kafka.sasl.password": password}
    return [base | {"kafka.sasl.jaas.config": jaas}, base | separate]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_sasl(spark: SparkSession, guarded: str, mechanism: str) -> None:
    for options in credentials(mechanism):
        frame = load(spark, guarded, subscribe=TOPIC, **options)
        before = frame.count()
        assert before >= 2
        writer = frame.limit(1).select("value").write.format("ottla").mode("append")
        writer.options(**options, topic=TOPIC).option("kafka.bootstrap.servers", guarded).save()
        assert load(spark, guarded, subscribe=TOPIC, **options).count() == before + 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password(spark: SparkSession, guarded: str, mechanism: str) -> None:
    for options in credentials(mechanism, "wrong-secret"):
        with pytest.raises(Exception, match="AUTHENTICATION_FAILED") as raised:
            load(spark, guarded, subscribe=TOPIC, **options).count()
        assert "wrong-secret" not in str(raised.value)


def test_no_credentials_at_all(spark: SparkSession, guarded: str) -> None:
    options = {"subscribe": TOPIC, "kafka.default.api.timeout.ms": "2000"}
    with pytest.raises(Exception, match=r"BROKER_UNAVAILABLE|BROKER_INCOMPATIBLE") as raised:
        load(spark, guarded, **options).count()
    assert guarded in str(raised.value)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[TokenEndpoint]:
    with token_endpoint("anna", PASSWORD) as running:
        yield running


def bearer(jaas: str = "", **settings: str) -> dict[str, str]:
    given = {f"kafka.sasl.{name.replace('_', '.')}": value for name, value in settings.items()}
    given |= {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "OAUTHBEARER"}
    return given | ({"kafka.sasl.jaas.config": f"{BEARER} {jaas};"} if jaas else {})


def test_bearer_tokens(spark: SparkSession, guarded: str, endpoint: TokenEndpoint) -> None:
    by_endpoint = bearer(
        f'clientId="anna" clientSecret="{PASSWORD}"', oauthbearer_token_endpoint_url=endpoint.url
    )
    unsecured = bearer('unsecuredLoginStringClaim_sub="anna"')
    by_function = bearer(oauthbearer_token_function="tests.doubles.tokens:token_of_anna")
    for options in (by_endpoint, unsecured, by_function):
        assert load(spark, guarded, subscribe=TOPIC, **options).count() >= 2
    before = load(spark, guarded, subscribe=TOPIC, **by_endpoint).count()
    writer = spark.range(1).selectExpr("'x' AS value").write.format("ottla").mode("append")
    writer = writer.options(**by_endpoint, topic=TOPIC)
    writer.option("kafka.bootstrap.servers", guarded).save()
    assert load(spark, guarded, subscribe=TOPIC, **by_endpoint).count() == before + 1


def test_bearer_tokens_that_are_refused(
    spark: SparkSession, guarded: str, endpoint: TokenEndpoint
) -> None:
    wrong_secret = bearer(
        'clientId="anna" clientSecret="wrong-secret"', oauthbearer_token_endpoint_url=endpoint.url
    )
    expired = bearer(oauthbearer_token_function="tests.doubles.tokens:expired_token")
    for options, words in (
        (wrong_secret, "token endpoint http://127.0.0.1:.* gave no token: 401 invalid_client"),
        (expired, "refused to authenticate us by OAUTHBEARER: .*invalid_token"),
    ):
        with pytest.raises(Exception, match=f"AUTHENTICATION_FAILED.*{words}") as raised:
            load(spark, guarded, subscribe=TOPIC, **options).count()
        assert "wrong-secret" not in str(raised.value)
