"""Decisions as text, and the names of transactions."""

from __future__ import annotations

import base64
import json
import random
import zlib

import pytest

from pyspark_ottla.write.decisions import (
    CHUNK_CHARACTERS_MAX,
    Decision,
    Prepared,
    Target,
    Write,
    belongs_to,
    chunk_groups,
    decode_decision,
    encode_decision,
    parse_chunk,
    transactional_id,
)

NAME = "pyspark-ottla-query"
HOSTS = ("0123456789ab", "ffffffffffff")
JOB, RUN = "a" * 32, "run-1"


def decision(tasks: int, first: int = 4000) -> Decision:
    return Decision(
        7,
        JOB,
        RUN,
        12_345,
        tuple(
            Prepared(transactional_id(NAME, HOSTS[n % 2], n // 2), first + n, n % 5)
            for n in range(tasks)
        ),
        Target("cluster-of-these-tests", "orders", "x" * 22),
        "0123456789abcdef",
        "a-query",
    )


@pytest.mark.parametrize("tasks", [0, 1, 2, 200, 20_000])
def test_a_decision_comes_back(tasks: int) -> None:
    wanted = decision(tasks)
    texts = encode_decision(NAME, wanted)
    assert all(len(text) <= CHUNK_CHARACTERS_MAX for text in texts)
    chunks = [chunk for text in texts if (chunk := parse_chunk(text)) is not None]
    assert [(c.job, c.number, c.total) for c in chunks] == [
        (JOB, number, len(texts)) for number in range(len(texts))
    ]
    found = decode_decision(NAME, 7, chunks)
    assert found is not None
    assert found._replace(transactions=()) == wanted._replace(transactions=())
    assert sorted(found.transactions) == sorted(wanted.transactions)


def test_a_decision_of_an_earlier_version_is_read() -> None:
    body = json.dumps([RUN, 5, {HOSTS[0]: [[0], [7], [1]]}])
    text = base64.b85encode(zlib.compress(body.encode())).decode()
    chunk = parse_chunk(f"1:{JOB}:0/1:{text}")
    assert chunk is not None
    prepared = Prepared(transactional_id(NAME, HOSTS[0], 0), 7, 1)
    assert decode_decision(NAME, 7, [chunk]) == Decision(7, JOB, RUN, 5, (prepared,))


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (Target("c", "t", "1"), False),
        (Target("", "t", ""), False),  # brokers that tell no ids
        (Target("c", "t", "2"), True),
        (Target("d", "t", "1"), True),
        (Target("c", "u", "1"), True),
    ],
)
def test_which_targets_are_others(other: Target, differs: bool) -> None:
    assert Target("c", "t", "1").is_other_than(other) is differs


def test_a_decision_about_two_hundred_tasks_fits_into_one_group() -> None:
    chosen = random.Random(1).sample(range(10_000), 200)
    rows = [
        Prepared(transactional_id(NAME, HOSTS[0], slot), 9_000_000 + slot, slot % 50)
        for slot in chosen
    ]
    wanted = Decision(7, JOB, RUN, 1, tuple(rows))
    assert len(encode_decision(NAME, wanted)) == 1


@pytest.mark.parametrize("text", ["", "[1,2,3]", "2:ab:0/1:x", "1:zz:0/1:", "1:ab:0/1"])
def test_other_metadata_is_no_decision(text: str) -> None:
    assert parse_chunk(text) is None


@pytest.mark.parametrize("text", ["", "x", "not base 85 \x00", "c$@"])
def test_a_damaged_decision_is_none(text: str) -> None:
    chunk = parse_chunk(f"1:{JOB}:0/1:{text}")
    assert chunk is not None
    assert decode_decision(NAME, 7, [chunk]) is None


def test_which_ids_are_those_of_a_write() -> None:
    own = transactional_id(NAME, HOSTS[0], 3)
    assert belongs_to(NAME, own)
    assert not belongs_to(NAME, f"{NAME}-driver")
    assert not belongs_to(NAME, transactional_id(f"{NAME}-inserts", HOSTS[0], 3))
    assert not belongs_to(NAME, transactional_id(f"{NAME}-{HOSTS[0]}-1", HOSTS[0], 3))
    assert not belongs_to(f"{NAME}-inserts", own)


def test_names() -> None:
    assert chunk_groups("g", 3) == ["g", "g.1", "g.2"]
    write = Write("p-q", 4, JOB)
    assert write.driver_id == "p-q-driver"
    assert write.describe() == "batch 4 of p-q"
    assert write._replace(is_numbered=False).describe() == "p-q"
