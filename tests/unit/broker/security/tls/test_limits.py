from __future__ import annotations

import ssl

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.security.tls.limits import limit_context, openssl_name
from tests.doubles.certificates import Certificates
from tests.unit.broker.security.tls.test_contexts import shakes_hands

NEWEST = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"
OLDER = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def limited(context: ssl.SSLContext, protocols: str = "", suites: str = "") -> ssl.SSLContext:
    settings = {"ssl.enabled.protocols": protocols, "ssl.cipher.suites": suites}
    limit_context(context, settings.get)
    return context


def version(certificates: Certificates, protocols: str = "", suites: str = "") -> str | None:
    server = limited(certificates.server_context(), protocols, suites)
    return shakes_hands(server, certificates.client_context())


@pytest.mark.parametrize(
    ("protocols", "suites", "expected"),
    [
        ("", "", "TLSv1.3"),
        ("TLSv1.2", "", "TLSv1.2"),
        ("TLSv1.2,TLSv1.3", NEWEST, "TLSv1.3"),
        ("TLSv1.2", OLDER, "TLSv1.2"),
        # Without a suite for TLS 1.3 there is no TLS 1.3, as in Java.
        ("TLSv1.2,TLSv1.3", OLDER, "TLSv1.2"),
        ("", f"{OLDER},{NEWEST}", "TLSv1.3"),
    ],
)
def test_what_is_agreed_on(
    certificates: Certificates, protocols: str, suites: str, expected: str
) -> None:
    assert version(certificates, protocols, suites) == expected


def test_suites_of_the_newest_version_only_leave_no_older_version() -> None:
    context = limited(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), suites=NEWEST)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_older_suites_are_limited() -> None:
    context = limited(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), suites=OLDER)
    older = [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert older == ["ECDHE-ECDSA-AES256-GCM-SHA384"]


@pytest.mark.parametrize(
    ("protocols", "suites", "words"),
    [
        ("SSLv3", "", r"ssl\.enabled\.protocols: SSLv3"),
        ("TLSv1,TLSv1.3", "", r"must be neighbours, .*TLSv1\.1, TLSv1\.2 too"),
        ("", "TLS_ROT_WITH_13", r"ssl\.cipher\.suites: OpenSSL has none of TLS_ROT_WITH_13"),
        ("", "TLS_FOO_BAR", r"OpenSSL has none of TLS_FOO_BAR"),
        ("", f"{OLDER},TLS_ROT_WITH_13", "none of TLS_ROT_WITH_13"),
        ("TLSv1.3", OLDER, r"no suite for TLSv1\.3"),
    ],
)
def test_limits_that_cannot_be_kept(protocols: str, suites: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        limited(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), protocols, suites)


def test_one_suite_of_the_newest_version_is_kept_or_refused() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    suites = "TLS_AES_256_GCM_SHA384"
    if hasattr(context, "set_ciphersuites"):
        newest = limited(context, suites=suites).get_ciphers()
        assert [each["name"] for each in newest if each["protocol"] == "TLSv1.3"] == [suites]
    else:
        with pytest.raises(ConfigError, match=r"cannot choose suites of TLS 1\.3: .*AES_128"):
            limited(context, suites=suites)


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA", "AES256-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
    ],
)
def test_cipher_names_of_openssl(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)
