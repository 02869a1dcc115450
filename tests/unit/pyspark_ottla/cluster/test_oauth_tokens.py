"""Tokens from everywhere they may come from, and what is said when there is none."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.protocol.client.errors import AuthenticationError
from pyspark_ottla.cluster import oauth_tokens
from pyspark_ottla.cluster.oauth_tokens import TokenSource
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.oauth_options import OAuthOptions
from tests.doubles.tokens import TokenEndpoint, token_endpoint, unsecured_token

SECRET = "hunter2:+ä"


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(scope="module")
def running() -> Iterator[TokenEndpoint]:
    with token_endpoint("spark", SECRET) as endpoint:
        yield endpoint


@pytest.fixture
def endpoint(running: TokenEndpoint) -> TokenEndpoint:
    running.responses.clear()
    running.forms.clear()
    return running


def by_endpoint(endpoint: TokenEndpoint, **changes: object) -> OAuthOptions:
    given = {"client_id": "spark", "client_secret": SECRET, "scope": "kafka"} | changes
    return OAuthOptions("endpoint", endpoint.url, **given)  # type: ignore[arg-type]
    # ... values of several types in one dict


def error_text(options: OAuthOptions) -> str:
    with pytest.raises(AuthenticationError) as raised:
        TokenSource(options)()
    assert SECRET not in str(raised.value)
    return str(raised.value)


def test_a_token_serves_until_most_of_its_life_is_over(endpoint: TokenEndpoint) -> None:
    clock = Clock()
    source = TokenSource(by_endpoint(endpoint), clock)
    first = source()
    clock.seconds += 0.75 * 3600
    assert source() == first
    assert endpoint.forms == [{"grant_type": "client_credentials", "scope": "kafka"}]
    clock.seconds += 0.1 * 3600
    source()
    assert len(endpoint.forms) == 2


def test_a_token_with_life_left_serves_while_there_is_no_other(endpoint: TokenEndpoint) -> None:
    clock = Clock()
    source = TokenSource(by_endpoint(endpoint), clock)
    first = source()
    clock.seconds += 0.9 * 3600
    endpoint.responses.append((401, {}, b"{}"))
    assert source() == first
    assert source() == first, "the endpoint is left alone for a while"
    clock.seconds += 0.2 * 3600
    endpoint.responses.append((401, {}, b"{}"))
    with pytest.raises(AuthenticationError, match="gave no token: 401"):
        source()


def test_a_refusal_is_said_and_not_repeated(endpoint: TokenEndpoint) -> None:
    words = error_text(by_endpoint(endpoint, client_secret="other"))
    assert words == (
        f"the token endpoint {endpoint.url} gave no token: 401 invalid_client: who is that?"
    )
    assert len(endpoint.forms) == 1


def test_an_endpoint_that_is_busy_is_retried(endpoint: TokenEndpoint) -> None:
    """As one that many executors ask at once."""
    endpoint.responses += [
        (503, {}, b"busy"),
        (429, {}, b"slowly"),
        (408, {}, b"late"),
        (502, {}, b""),
    ]
    assert TokenSource(by_endpoint(endpoint))().count(".") == 2
    assert not endpoint.responses


def test_an_endpoint_that_stays_busy(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth_tokens, "ENDPOINT_RETRY_SECONDS", 0.3)
    endpoint.responses += [(503, {}, b"busy")] * 100
    assert "gave no token: 503" in error_text(by_endpoint(endpoint))
    endpoint.responses.clear()
    clock = Clock()
    source = TokenSource(by_endpoint(endpoint), clock)
    source()
    clock.seconds += 0.9 * 3600
    endpoint.forms.clear()
    endpoint.responses += [(503, {}, b"busy")] * 100
    source()
    assert len(endpoint.forms) == 1, "a token with life left serves at once"


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ((200, {}, b"<html>"), "sent no JSON with an access_token"),
        ((200, {}, b'{"token": "x"}'), "sent no JSON with an access_token"),
        ((200, {}, b'{"access_token": "two words"}'), "gave something that is no bearer token"),
        ((200, {}, b"x" * (2 << 20)), "sent far more than a token"),
        ((302, {"Location": "http://127.0.0.1:1/elsewhere"}, b""), "gave no token: 302"),
        ((400, {}, json.dumps({"error": f"bad {SECRET}"}).encode()), "gave no token: 400"),
    ],
)
def test_responses_that_are_no_tokens(
    endpoint: TokenEndpoint, response: tuple[int, dict[str, str], bytes], text: str
) -> None:
    endpoint.responses.append(response)
    assert text in error_text(by_endpoint(endpoint))


def test_no_server_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth_tokens, "ENDPOINT_RETRY_SECONDS", 0.2)
    options = OAuthOptions("endpoint", "http://127.0.0.1:1/t?key=s3cret", "spark", SECRET)
    assert "the token endpoint http://127.0.0.1:1/t gave no token: " in error_text(options)


def test_credentials_with_odd_characters_can_be_encoded(endpoint: TokenEndpoint) -> None:
    """As RFC 6749 has it, which not every endpoint follows."""
    assert "401" in error_text(by_endpoint(endpoint, encodes_credentials=True))


def test_an_unsecured_token() -> None:
    claims = (("String", "sub", "anna"), ("Number", "level", "3"), ("List", "scope", "|a|b"))
    clock = Clock()
    source = TokenSource(OAuthOptions("unsecured", claims=claims, lifetime_seconds=60), clock)
    token = source()
    header, payload, signature = token.split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    found = json.loads(base64.urlsafe_b64decode(payload + "=="))
    assert found.pop("exp") - found.pop("iat") == pytest.approx(60)
    assert found == {"sub": "anna", "level": 3.0, "scope": ["a", "b"]}
    assert signature == ""
    clock.seconds += 50
    assert source() is not token


def test_a_file_is_read_again_when_its_token_nears_its_end(tmp_path: Path) -> None:
    file = tmp_path / "token"
    clock = Clock()
    source = TokenSource(OAuthOptions("file", str(file)), clock)
    with pytest.raises(AuthenticationError, match="token cannot be read: No such file"):
        source()
    old, new = unsecured_token("a", lives_seconds=1000), unsecured_token("b")
    file.write_text(f"{old}\n")
    assert source() == old
    file.write_text(f"{new}\n")
    clock.seconds += 700
    assert source() == old
    clock.seconds += 200
    assert source() == new


def test_a_token_that_does_not_say_how_long_it_lives_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    source = TokenSource(OAuthOptions("file", str(file)))
    for token in ("opaque", "another"):
        file.write_text(token)
        assert source() == token


def token_and_end() -> tuple[str, float]:
    return "abc", 4_000_000_000.0


def failing() -> str:
    raise ValueError(SECRET)


def two_words() -> str:
    return "two words"


def number() -> int:
    return 5


def test_a_function_of_the_users() -> None:
    assert TokenSource(OAuthOptions("function", f"{__name__}:token_and_end"))() == "abc"
    for function, words in (
        ("failing", "failed with ValueError"),
        ("two_words", "gave something that is no bearer token"),
        ("number", "must give a token, or a token and when it ends (seconds since 1970)"),
    ):
        path = f"{__name__}:{function}"
        assert error_text(OAuthOptions("function", path)) == f"the token function {path} {words}"
    with pytest.raises(ConnectorError, match=r"token\.function names nowhere:token, which"):
        TokenSource(OAuthOptions("function", "nowhere:token"))()
