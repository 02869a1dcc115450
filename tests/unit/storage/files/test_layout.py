"""Names of files and directories."""

import pytest

from ottla.storage.files.layout import (
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    offset_of_file,
    parse_partition_directory,
    partition_directory_name,
    segment_file_name,
    unique_directory_name,
)

UNIQUE = "0123456789abcdef0123456789abcdef"


def test_segment_names_have_twenty_digits() -> None:
    assert segment_file_name(42, ".log") == "00000000000000000042.log"
    assert offset_of_file("00000000000000000042.log") == 42
    assert offset_of_file("00000000000000000042.index.deleted") == 42


@pytest.mark.parametrize("name", ["42.log", "leader-epoch-checkpoint", "0000000000000000004x.log"])
def test_other_names_have_no_offset(name: str) -> None:
    assert offset_of_file(name) is None


def test_partition_directories_come_back() -> None:
    assert partition_directory_name("a-b.c", 7) == "a-b.c-7"
    assert parse_partition_directory("a-b.c-7") == ("a-b.c", 7, "")
    for suffix in (DELETE_DIRECTORY_SUFFIX, FUTURE_DIRECTORY_SUFFIX):
        name = unique_directory_name("a-b.c", 7, UNIQUE, suffix)
        assert name == f"a-b.c-7.{UNIQUE}{suffix}"
        assert parse_partition_directory(name) == ("a-b.c", 7, suffix)


def test_a_topic_that_only_looks_deleted_is_a_topic() -> None:
    assert parse_partition_directory("to-delete") is None
    assert parse_partition_directory("x-delete-0") == ("x-delete", 0, "")
    assert parse_partition_directory("a-0.short-delete") is None


@pytest.mark.parametrize("name", ["lost+found", "remote-log-index-cache", "topic", "-0", "t-x"])
def test_what_is_no_partition(name: str) -> None:
    assert parse_partition_directory(name) is None


def test_long_names_fit_into_the_file_system() -> None:
    name = unique_directory_name("t" * 249, 12, UNIQUE, DELETE_DIRECTORY_SUFFIX)
    assert len(name) == 255
    assert name.endswith(f"-12.{UNIQUE}-delete")


def test_a_unique_part_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 digits"):
        unique_directory_name("t", 0, "short", DELETE_DIRECTORY_SUFFIX)
