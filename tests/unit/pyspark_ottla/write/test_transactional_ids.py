"""Transactional ids that the processes of a host share."""

from __future__ import annotations

import errno
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from pyspark_ottla.write import transactional_ids
from pyspark_ottla.write.decisions import belongs_to
from pyspark_ottla.write.transactional_ids import claimed_id, host_name, shared_directory

NAME = "prefix-query"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def take(batch_id: int, decided: int, name: str = NAME) -> str:
    with claimed_id(name, batch_id, decided) as identifier:
        assert belongs_to(name, identifier)
        return identifier


def test_tasks_of_a_batch_have_different_ids() -> None:
    assert len({take(0, -1) for _ in range(5)}) == 5


def test_ids_are_used_again_when_a_later_batch_is_decided() -> None:
    first = [take(0, -1) for _ in range(3)]
    second = [take(1, 0) for _ in range(3)]
    assert not set(first) & set(second), "batch 0 is decided, but may not have ended"
    assert [take(2, 1) for _ in range(3)] == first
    assert [take(3, 2) for _ in range(3)] == second


def test_an_execution_of_the_same_batch_takes_other_ids() -> None:
    first = take(5, 4)
    assert take(5, 4) != first
    assert take(6, 4) != first, "batch 5 is not decided yet"


def test_batch_numbers_that_start_over_take_new_ids() -> None:
    old = take(57, 56)
    assert take(0, -1) != old
    assert take(1, 0) != old


def test_writes_have_ids_of_their_own() -> None:
    assert take(0, -1) != take(0, -1, "prefix-other")


def hold(
    started: multiprocessing.synchronize.Event, end: multiprocessing.synchronize.Event
) -> None:
    with claimed_id(NAME, 0, -1):
        started.set()
        end.wait(60)


def test_an_id_is_not_taken_while_its_process_writes(directory: Path) -> None:
    context = multiprocessing.get_context("fork")
    started, end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(started, end))
    process.start()
    try:
        assert started.wait(60)
        # The slot is free by its batch, but its task still runs: Spark has forgotten it.
        assert take(9, 8).endswith("-1")
    finally:
        end.set()
        process.join(60)
    assert take(10, 9).endswith("-0")


def test_the_host_keeps_its_name_and_an_image_does_not(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = shared_directory()
    assert shared is not None
    name = host_name(shared)
    assert host_name(shared) == name
    monkeypatch.setattr(transactional_ids.platform, "node", lambda: "another")
    assert host_name(shared) != name


def test_a_directory_of_another_user_is_not_used(directory: Path) -> None:
    path = directory / f"pyspark-ottla-{os.getuid()}"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    assert shared_directory() is None
    assert len({take(0, -1), take(0, -1), take(2, 1)}) == 3, "ids that are used once"


@pytest.mark.parametrize("call", ["flock", "pwrite", "open"])
def test_a_directory_without_locks_or_space_is_not_used(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """As of some file systems of a network, which have no locks."""
    tries = 0

    def fails(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSYS if call == "flock" else errno.ENOSPC, "not possible")

    first = take(0, -1)
    module = transactional_ids.fcntl if call == "flock" else transactional_ids.os
    monkeypatch.setattr(module, call, fails)
    monkeypatch.setattr(transactional_ids, "SLOTS_MAX", 100)
    assert len({first, take(0, -1), take(2, 1)}) == 3, "ids that are used once"
    assert tries == 2, "one a task"


def test_an_error_of_the_task_is_its_own() -> None:
    with pytest.raises(OSError, match="of the task"), claimed_id(NAME, 0, -1):
        raise OSError("of the task")
    assert take(2, 1).endswith("-0"), "unlocked"
