"""The kafka.* options: used, harmless, refused, unknown; and the texts that go with them."""

import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import ClientOptions, parse_client_options


def parse(*, writes: bool = False, **options: str) -> ClientOptions:
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return parse_client_options({"kafka.bootstrap.servers": "b:1"} | given, writes=writes)


def text_of(*, writes: bool = False, **options: str) -> str:
    with pytest.raises(ConnectorError) as raised:
        parse(writes=writes, **options)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("localhost:9092", "localhost:9092"),
        (" a:1 , b.example.org:22 ", "a:1,b.example.org:22"),
        ("[::1]:9092", "[::1]:9092"),
        ("PLAINTEXT://a:1", "a:1"),
    ],
)
def test_bootstrap_servers(text: str, servers: str) -> None:
    assert parse(bootstrap_servers=text).bootstrap == servers


@pytest.mark.parametrize("text", ["localhost", "a:0", "a:70000", "a:b", ":9092", "a b:1", ","])
def test_bootstrap_servers_that_are_none(text: str) -> None:
    assert text_of(bootstrap_servers=text) == (
        f"[INVALID_OPTION] The option kafka.bootstrap.servers has the value {text!r}. "
        "Expected host:port, or several of them with commas between."
    )


def test_bootstrap_servers_are_required() -> None:
    with pytest.raises(ConnectorError) as raised:
        parse_client_options({"subscribe": "t"}, writes=False)
    assert str(raised.value) == (
        "[MISSING_OPTION] The option kafka.bootstrap.servers is not set. "
        "Set it to the brokers to start from, such as localhost:9092."
    )


def test_defaults_of_a_reader_and_a_writer() -> None:
    options = parse()
    assert (options.request_timeout_ms, options.fetch_max_wait_ms) == (30_000, 500)
    assert (options.acks, options.codec, options.idempotent) == (-1, "none", True)


def test_settings_without_an_effect_are_accepted() -> None:
    parse(max_poll_records="100", session_timeout_ms="1", linger_ms="5", acks="1")
    parse(writes=True, isolation_level="read_committed")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("auto_offset_reset", "Use the option startingOffsets to set where reading begins."),
        ("interceptor_classes", "Java interceptors cannot run here."),
        ("value_serializer", "Values are written as they are: string or binary columns."),
    ],
)
def test_refused_settings(name: str, hint: str) -> None:
    spelled = name.replace("_", ".")
    assert text_of(**{name: "x"}) == (
        f"[UNSUPPORTED_OPTION] The option kafka.{spelled} cannot be set. {hint}"
    )


def test_an_unknown_setting_gets_a_suggestion() -> None:
    text = text_of(isolation_levels="read_committed")
    assert text.startswith("[UNKNOWN_OPTION] There is no option kafka.isolation.levels. Did you ")
    assert "kafka.isolation.level" in text


def test_acks_and_idempotence_must_agree() -> None:
    assert not parse(writes=True, acks="1").idempotent
    assert text_of(writes=True, acks="0", enable_idempotence="true") == (
        "[CONFLICTING_OPTIONS] kafka.enable.idempotence is true, but kafka.acks is 0. "
        "Set kafka.acks to all, or kafka.enable.idempotence to false."
    )


def test_a_codec_must_be_known() -> None:
    assert parse(writes=True, compression_type="ZSTD").codec == "zstd"
    assert text_of(writes=True, compression_type="brotli").endswith(
        "Expected one of none, gzip, snappy, lz4, zstd."
    )


def test_a_level_is_of_the_codec_that_is_used() -> None:
    java = {"compression_zstd_level": "9", "compression_gzip_level": "1"}
    assert parse(writes=True, compression_type="zstd", **java).codec_level == 9
    assert parse(writes=True, compression_type="lz4", **java).codec_level is None
    assert parse(writes=True, compression_type="lz4", compression_level="3").codec_level == 3
