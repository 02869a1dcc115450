"""Groups, offsets and transactions: whole conversations, the same with both brokers."""

import difflib
from collections.abc import Callable

import pytest

from tests.differential import group_scripts, transaction_scripts
from tests.differential.asking import Pair
from tests.doubles.transcript import Transcript

pytestmark = pytest.mark.kafka

SCRIPTS = (*group_scripts.SCRIPTS, *transaction_scripts.SCRIPTS)


@pytest.fixture(scope="module")
def prepared(pair: Pair) -> Pair:
    for bootstrap in (pair.kafka, pair.ottla):
        with Transcript(bootstrap) as transcript:
            transaction_scripts.prepare(transcript)
    return pair


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_conversation(prepared: Pair, script: Callable[[Transcript], None]) -> None:
    noted = []
    for bootstrap in (prepared.kafka, prepared.ottla):
        with Transcript(bootstrap) as transcript:
            script(transcript)
            noted.append(transcript.lines)
    kafka, ottla = noted
    difference = "\n".join(difflib.unified_diff(kafka, ottla, "kafka", "ottla", lineterm=""))
    assert not difference, f"\n{difference}"
