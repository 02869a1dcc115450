"""`ottla produce`, `consume`, `topics offsets`, `records delete`, `transactions`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.cli.values import CODEC_NAMES
from ottla.protocol.records.compression import CODEC_NAMES as RECORD_CODECS
from tests.doubles.command_line import CommandLine


def test_lines_go_in_and_come_out(ottla: CommandLine) -> None:
    written = ottla.done("produce", "lines", text="one\ntwo\r\nthree")
    assert written.errors.splitlines() == [
        "The broker created topic lines.",
        "3 record(s) written to lines.",
    ]
    assert ottla.done("consume", "lines").output == "one\ntwo\nthree\n"
    assert ottla.done("consume", "lines", "--offset", "-1").output == "three\n"
    assert ottla.done("consume", "lines", "-n", "2").output == "one\ntwo\n"
    assert ottla.done("consume", "lines", "--from-end").output == ""


def test_keys_headers_and_tombstones(ottla: CommandLine) -> None:
    options = ["--key-separator", ":", "-H", "source=test", "--null", "NULL", "-q"]
    ottla.done("produce", "keyed", *options, text="a:1\nb:2\na:NULL\n")
    shown = ottla.done("consume", "keyed", "-k", "--headers", "-w").output.splitlines()
    assert shown == [
        "keyed-0@0\tsource=test\ta\t1",
        "keyed-0@1\tsource=test\tb\t2",
        "keyed-0@2\tsource=test\ta\tnull",
    ]
    assert ottla.done("consume", "keyed", "--where-key", "b").output == "2\n"
    wrong = ottla("produce", "keyed", "-k", ":", text="no key here\n")
    assert wrong.code == 2
    assert "with --key-separator every line needs a key" in wrong.errors


def test_records_without_a_time_are_not_deleted_by_time(ottla: CommandLine) -> None:
    ottla.done("produce", "timeless", "--json-lines", "-q", text='{"value": "x", "timestamp": -1}')
    refused = ottla("records", "delete", "timeless", "--before-time", "2000-01-01", "--yes")
    assert (refused.code, "have no timestamps" in refused.errors) == (1, True)
    assert ottla.done("consume", "timeless").output == "x\n"
    ottla.done("records", "delete", "timeless", "--before-offset", "-1", "--yes")
    # There is nothing left that could have a time.
    ottla.done("records", "delete", "timeless", "--before-time", "2000-01-01", "--yes")


def test_what_was_written_before_a_wrong_line_is_reported(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "halfway")
    good = '{"value": "x"}\n' * 5000  # more than one read
    wrong = ottla("produce", "halfway", "--json-lines", text=good + "no JSON\n")
    assert wrong.code == 2
    count = int(wrong.errors.split()[0])
    assert 0 < count < 5000
    assert len(ottla.done("consume", "halfway").output.splitlines()) == count
    wrong = ottla("produce", "halfway", "--json-lines", "--json", text=good + "no JSON\n")
    assert (wrong.code, wrong.value["records"]) == (2, count)
    wrong = ottla("produce", "halfway", "--json-lines", text="no JSON\n")
    assert "written" not in wrong.errors


def test_arguments_need_not_be_text(ottla: CommandLine) -> None:
    options = ["--key", "k\udcff", "-H", "h=\udcfe", "--null", "\udcfd", "-q"]
    ottla.done("produce", "bytes", *options, text=b"a\n\xfd\n")
    shown = ottla.done("consume", "bytes", "-k", "--headers", "--where-key", "k\udcff").output
    assert shown == "h=\\xfe\tk\\xff\ta\nh=\\xfe\tk\\xff\tnull\n"
    wrong = ottla("produce", "bytes", "-H", "\udcff=a", text="a\n")
    assert (wrong.code, "name of a header" in wrong.errors) == (2, True)
    for line in ('{"headers": [["\\ud800", "x"]]}', "[" * 100_000):
        wrong = ottla("produce", "bytes", "--json-lines", text=line)
        assert (wrong.code, "is not a JSON object" in wrong.errors) == (2, True)


def test_a_value_that_no_request_takes_is_wrong_usage(ottla: CommandLine) -> None:
    for options in (["-p", "9" * 30], ["-r", "99999"]):
        wrong = ottla("topics", "create", "large", *options)
        assert (wrong.code, "does not fit" in wrong.errors) == (2, True)
    wrong = ottla("topics", "describe", "\udcff")
    assert (wrong.code, "does not fit" in wrong.errors) == (2, True)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_every_codec(ottla: CommandLine, codec: str) -> None:
    text = "".join(f"line {number}\n" for number in range(500))
    ottla.done("produce", f"codec-{codec}", "--codec", codec, text=text)
    assert ottla.done("consume", f"codec-{codec}").output == text


def test_codec_names_are_those_of_the_records() -> None:
    assert CODEC_NAMES == RECORD_CODECS


def test_json_lines_carry_everything_from_topic_to_topic(ottla: CommandLine) -> None:
    ottla.done("produce", "first", "-k", ":", "-H", "h=v", "-q", text="k:v\n")
    ottla.done("produce", "first", "--whole", "-q", text=b"\xff\x00 not text")
    exported = ottla.done("consume", "first", "--json").output
    ottla.done("produce", "second", "--json-lines", "-q", text=exported)
    assert ottla.done("consume", "second", "--json").output == exported.replace("first", "second")
    assert '"value":{"base64":"/wAgbm90IHRleHQ="}' in exported


def test_records_of_a_file_and_of_one_partition(ottla: CommandLine, tmp_path: Path) -> None:
    ottla.done("topics", "create", "files", "-p", "3")
    source = tmp_path / "lines.txt"
    source.write_text("".join(f"{number}\n" for number in range(1000)))
    ottla.done("produce", "files", "--file", str(source), "-p", "2", "-q")
    rows = ottla.done("topics", "offsets", "files", "--json").value
    assert [(row["partition"], row["end"]) for row in rows] == [(0, 0), (1, 0), (2, 1000)]
    assert ottla.done("consume", "files", "-p", "2", "--offset", "998").output == "998\n999\n"
    missing = ottla("consume", "files", "-p", "9")
    assert missing.errors == "ottla: files has no partition 9; it has 3, counted from 0.\n"


def test_reading_ends_when_no_record_comes(ottla: CommandLine) -> None:
    """Without a group, and as a member: a new group begins at the end, then where it was."""
    ottla.done("topics", "create", "quiet")
    ottla.done("produce", "quiet", text="a\n")
    waiting = ("consume", "quiet", "--follow", "--idle", "0.5")
    assert ottla.done(*waiting).output == ""
    assert ottla.done(*waiting, "--from-beginning").output == "a\n"
    assert ottla.done(*waiting, "--group", "waiters").output == ""
    ottla.done("produce", "quiet", text="b\n")
    assert ottla.done(*waiting, "--group", "waiters", "--from-beginning").output == "b\n"
    assert ottla.done(*waiting, "--group", "readers", "--from-beginning").output == "a\nb\n"
    for words in (("--idle", "1"), ("--follow", "--idle", "1", "--share-group", "g")):
        refused = ottla("consume", "quiet", *words)
        assert refused.code == 2
        assert "--idle needs --follow" in refused.errors


def test_times_choose_records(ottla: CommandLine) -> None:
    rows = "".join(
        f'{{"value": "{number}", "timestamp": {1_700_000_000_000 + number * 1000}}}\n'
        for number in range(10)
    )
    ottla.done("produce", "timed", "--json-lines", "-q", text=rows)
    some = ottla.done(
        *("consume", "timed", "--from-time", "1700000003000"),
        *("--until-time", "1700000005000"),
    )
    assert some.output == "3\n4\n"
    assert ottla.done("consume", "timed", "--from-time", "2023-11-14T22:13:29Z").output == "9\n"


def test_deleting_records_moves_the_first_offset(ottla: CommandLine) -> None:
    ottla.done("produce", "shrunk", "-q", text="a\nb\nc\n")
    deleted = ottla.done("records", "delete", "shrunk:0", "--before-offset", "2", "--yes")
    assert deleted.lines[1] == ["shrunk", "0", "2"]
    assert ottla.done("consume", "shrunk").output == "c\n"
    # -1 is the log end offset for a broker, not a time.
    early = ottla("records", "delete", "shrunk:0", "--before-time", "-1", "--yes")
    assert early.code == 2, early
    assert "'-1' is not a time" in early.errors
    beyond = ottla("records", "delete", "shrunk:0", "--before-offset", "99", "--yes")
    assert beyond.code == 1
    assert "OFFSET_OUT_OF_RANGE" in beyond.output


def test_an_unknown_topic_is_said_at_once(ottla: CommandLine) -> None:
    response = ottla("consume", "nowhere")
    assert response.code == 1
    assert response.errors.startswith(
        "ottla: topic nowhere: The topic 'nowhere' does not exist (UNKNOWN_TOPIC_OR_PARTITION)"
    )


def test_bench_leaves_nothing_behind(ottla: CommandLine) -> None:
    result = ottla.done("bench", "-n", "1000", "--round-trips", "5", "--json").value
    assert [row["records"] for row in result["throughput"]] == [1000, 1000]
    topics = ottla.done("topics", "list", "--json").value
    assert not [row for row in topics if row["name"].startswith("ottla-bench")]
