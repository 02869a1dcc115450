"""Names of certificates and users are those of the JDK and of Kafka's classes, to the character.

`regenerate.py` made the vectors. Where a JDK is there, other questions are asked, too.
"""

import gzip
import json
import os
import random
import shutil
from typing import Any

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.security.kerberos.principal_rules import PrincipalRules
from ottla.broker.security.tls.distinguished_names import (
    distinguished_name,
    subject_of,
    utf8_as_java,
)
from ottla.broker.security.tls.mapping_rules import MappingRules
from tests.doubles.apache_kafka import kafka_library
from tests.golden.identity.regenerate import VECTORS, Question, ask, questions

# Java accepts these, and they are refused here on purpose.
REFUSALS = ("not supported", "too many steps", "is not certain", "an empty match stands before")


def read_vectors() -> list[tuple[Question, dict[str, str]]]:
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        return [tuple(json.loads(line)) for line in lines]


def answer(question: dict[str, Any]) -> str:
    """Raises ValueError."""
    if "certificate" in question:
        return distinguished_name(subject_of(bytes.fromhex(question["certificate"])))
    if "bytes" in question:
        return utf8_as_java(bytes.fromhex(question["bytes"]))
    if "kerberos" in question:
        rules = PrincipalRules(question["kerberos"], question["realm"])
        return rules.short_name(question["name"])
    try:
        return MappingRules(question["rules"]).user_of(question["name"])
    except ConfigError as error:
        raise ValueError(str(error)) from None


def check(asked: list[Question], answers: list[dict[str, str]]) -> None:
    refused = same = 0
    for question, expected in zip(asked, answers, strict=True):
        try:
            found: str | None = answer(question)
        except ValueError as error:
            found = None
            if "found" in expected and any(each in str(error) for each in REFUSALS):
                refused += 1
                continue
        if expected.get("error") == "timeout":
            continue
        assert found == expected.get("found"), question
        same += found is not None
    assert same > len(asked) / 8
    assert refused < len(asked) / 20


@pytest.mark.parametrize("kind", ["certificate", "bytes", "rules", "kerberos"])
def test_names_are_those_of_java(kind: str) -> None:
    chosen = [pair for pair in read_vectors() if kind in pair[0]]
    assert len(chosen) >= 300
    check([question for question, _ in chosen], [expected for _, expected in chosen])


def test_other_names_are_those_of_java() -> None:
    if shutil.which("javac") is None:
        pytest.skip("a JDK makes the names to compare with: there is no `javac` on the PATH")
    seed = random.randrange(1 << 32) if os.environ.get("OTTLA_EXPLORE") else 2
    asked = questions(seed)
    version, answers = ask(kafka_library(), asked)
    if version > 17:  # the names of certificates are those of Java 17
        pairs = zip(asked, answers, strict=True)
        kept = [pair for pair in pairs if "certificate" not in pair[0]]
        asked, answers = [pair[0] for pair in kept], [pair[1] for pair in kept]
    check(asked, answers)
