"""Values of the command line, as people write them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ottla.cli.client_properties import mistyped, read_client_properties
from ottla.cli.configs import resource_of
from ottla.cli.group_reset import _from_file
from ottla.cli.offsets import parse_duration, parse_time
from ottla.cli.output import Failure, bytes_text, cell_text, print_rows
from ottla.cli.passwords import read_password
from ottla.cli.produce import read_lines
from ottla.cli.quotas import _set_operation
from ottla.cli.reassignment_file import plan_text, read_plan
from ottla.cli.topics import parse_assignment
from ottla.cli.values import parse_settings, read_json_file
from ottla.protocol.client.security import Security
from ottla.protocol.consumer_protocol import assigned_partitions
from ottla.protocol.topics import TopicPartition


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        *(("250ms", 250), ("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000)),
        *(("7d", 604_800_000), ("PT1H30M", 5_400_000), ("P1DT0.5S", 86_400_500)),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "h", "P", "PT", "2 weeks", "-1h", f"PT{'9' * 400}S"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Failure, match="is not a duration"):
        parse_duration(text)


def test_times() -> None:
    assert parse_time("1700000000000") == 1_700_000_000_000
    assert parse_time("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert parse_time("2023-11-15T00:13:20+02:00") == 1_700_000_000_000
    assert (parse_time("0"), parse_time(str(2**63 - 1))) == (0, 2**63 - 1)


@pytest.mark.parametrize(
    "text",
    [
        *("noon", "", "\u00b2", "--5", "1" * 5_000),
        # Of a broker: the log end offset, and the first one.
        *("-1", "-2", "1969-12-31T23:59:59.999Z"),
        str(2**63),
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(Failure, match="is not a time") as failure:
        parse_time(text)
    assert failure.value.code == 2


def test_settings_keep_what_follows_the_first_equals_sign() -> None:
    assert parse_settings(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(Failure, match="is not name=value"):
        parse_settings(["=x"])


def test_assignments() -> None:
    assert parse_assignment("") == []
    assert parse_assignment("0:1,1:2") == [[0, 1], [1, 2]]
    with pytest.raises(Failure, match="brokers with colons"):
        parse_assignment("0;1")


def test_plans_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = {TopicPartition("t", 1): [2, 3], TopicPartition("t", 0): [1, 2]}
    path.write_text(plan_text(plan))
    assert read_plan(str(path)) == plan
    for text in ("{}", "[]", '{"partitions": [{"topic": "t"}]}', '{"partitions": []}', "{"):
        path.write_text(text)
        with pytest.raises(Failure, match=r"plan\.json") as failure:
            read_plan(str(path))
        assert failure.value.code == 2


def test_client_properties(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# comment\n\n! also\nsecurity.protocol = SSL\nkey=a=b\n")
    assert read_client_properties(str(path)) == {"security.protocol": "SSL", "key": "a=b"}
    path.write_text("fine=1\nnonsense\n")
    with pytest.raises(Failure, match=r"client\.properties:2: 'nonsense' is not name=value"):
        read_client_properties(str(path))


def test_client_properties_have_the_format_of_java(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol: SASL_PLAINTEXT\n"
        "sasl.mechanism PLAIN\n"
        "ssl.endpoint.identification.algorithm=\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        '    username="alice" \\\n'
        "    # no comment within a continued line \\\n"
        '    password="\\u0061\\\\\\"b";\n'
    )
    properties = read_client_properties(str(path))
    security = Security.from_properties(properties)
    assert (security.protocol, security.mechanism) == ("SASL_PLAINTEXT", "PLAIN")
    assert (security.username, security.password) == ("alice", 'a"b')
    assert not security.check_hostname
    assert "username" not in properties


def test_names_of_client_properties_that_are_mistyped() -> None:
    given = dict.fromkeys(
        ("sasl.mechansim", "ssl.trustore.location", "sasl.mechanism", "ssl.protocol", "retries"),
        "x",
    )
    assert mistyped(given) == [
        ("sasl.mechansim", "sasl.mechanism"),
        ("ssl.trustore.location", "ssl.truststore.location"),
    ]
    assert mistyped({"security.protocol": "SSL"}) == []


def test_names_of_quotas_that_are_mistyped() -> None:
    with pytest.raises(Failure, match=r"did you mean producer_byte_rate\?") as failure:
        _set_operation("producer_bytes_rate=1")
    assert failure.value.code == 2


def test_client_properties_that_cannot_be_read_are_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    for data in (b"a=1\nb=\xe9\n", b"a=1\nb=\\uZZZZ\n"):
        path.write_bytes(data)
        with pytest.raises(Failure, match=r"client\.properties:2: ") as failure:
            read_client_properties(str(path))
        assert failure.value.code == 2


def test_lines_are_those_of_each_read(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\r\nb\n\nlast")
    with path.open("rb") as source:
        assert list(read_lines(source)) == [[b"a", b"b", b""], [b"last"]]


def test_an_assignment_that_is_not_a_consumers() -> None:
    assert assigned_partitions(b"") == []
    assert assigned_partitions(b"\xff\xff") == []
    assert assigned_partitions(b"\x00\x00\x00\x00\x00\xff") == []
    body = b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x02\xff\xff\xff\xff"
    assert assigned_partitions(body) == [TopicPartition("t", 2)]
    # A version of the future is read as the highest known one.
    assert assigned_partitions(b"\x00\x63" + body[2:]) == [TopicPartition("t", 2)]


def test_cells_and_sizes() -> None:
    assert [cell_text(value) for value in (None, "", True, [1, 2], [], 0, 1234.5)] == [
        *("-", "-", "yes", "1,2", "-", "0", "1,234.5")
    ]
    assert [bytes_text(count) for count in (0, 1023, 1536, 5 << 30)] == [
        *("0 B", "1023 B", "1.5 KiB", "5.0 GiB")
    ]


def test_tables_on_a_pipe_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"name": "a", "size": 5}, {"name": "bc", "size": 10}], ["name", "size"])
    assert capsys.readouterr().out == "NAME  SIZE\na        5\nbc      10\n"
    print_rows([], ["name"], empty="None.")
    assert capsys.readouterr().out == "None.\n"


def test_a_file_of_brackets_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[" * 100_000)
    with pytest.raises(Failure, match="is not JSON"):
        read_json_file(str(path))


def test_a_number_without_bound_is_no_broker(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1e999]}]}')
    with pytest.raises(Failure, match="needs"):
        read_plan(str(path))


@pytest.mark.parametrize("name", ["\u00b2", "one", "-1"])
def test_what_is_no_id_of_a_broker(name: str) -> None:
    with pytest.raises(Failure, match="is not the id of a broker"):
        resource_of("broker", name)


@pytest.mark.parametrize("content", [b"x" * 200_000, b"t,0,five\n", b"t,0\n", b"\xff,0,1\n"])
def test_a_file_that_has_no_offsets(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "offsets.csv"
    path.write_bytes(content)
    with pytest.raises(Failure, match="a line is topic,partition,offset"):
        _from_file(str(path), [])


def test_a_password_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    with pytest.raises(Failure, match="standard input"):
        read_password("", "alice")


def test_files_of_an_editor_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfsecret\r\n")
    assert read_password(str(path), "alice") == "secret"
    path.write_bytes(b'\xef\xbb\xbf{"version": 1}\r\n')
    assert read_json_file(str(path)) == {"version": 1}
    path.write_bytes(b"\xef\xbb\xbft,0,5\r\n")
    assert list(_from_file(str(path), [])) == [TopicPartition("t", 0)]


def test_a_file_without_an_end_is_no_password() -> None:
    with pytest.raises(Failure, match="larger than 65536 bytes"):
        read_password("/dev/zero", "alice")
