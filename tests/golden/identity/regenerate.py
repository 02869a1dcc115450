"""Makes `identity.jsonl.gz` anew: called by `make golden`, needs a JDK and Kafka's jars.

A line is a question and the answer of the JDK and of Kafka's classes, see `GoldenIdentity.java`.
"""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.doubles import odd_rules, odd_subjects

HERE = Path(__file__).resolve().parent
VECTORS = HERE / "identity.jsonl.gz"
REALM = "REALM.COM"

Question = dict[str, Any]


def questions(seed: int) -> list[Question]:
    """Certificates, bytes in UTF-8, and pairs of rules and names."""
    source = random.Random(seed)
    subjects = [*odd_subjects.real_subjects(), *odd_subjects.damaged_subjects(source, 60)]
    subjects += [odd_subjects.random_subject(source) for _ in range(300)]
    found: list[Question] = [
        {"certificate": odd_subjects.certificate(subject).hex()} for subject in subjects
    ]
    found += [{"bytes": data.hex()} for data in odd_subjects.damaged_texts(source, 300)]
    for rules, name in (odd_rules.random_pair(source) for _ in range(2000)):
        found.append({"rules": rules, "name": name})
    for unparsed, name in (odd_rules.random_kerberos(source) for _ in range(500)):
        found.append({"kerberos": unparsed, "realm": REALM, "name": name})
    return found


def ask(
    library: Path, asked: Iterable[Question], options: Sequence[str] = ()
) -> tuple[int, list[dict[str, str]]]:
    """The version of Java, and its answers."""
    program = str(HERE / "GoldenIdentity.java")
    done = subprocess.run(
        ["java", "-Xmx256m", *options, "-cp", f"{library}/*", program],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    first, *lines = done.stdout.split("\n")[:-1]
    return json.loads(first)["java"], [json.loads(line) for line in lines]


def main(library: Path) -> None:
    asked = questions(seed=1)
    version, answers = ask(library, asked)
    assert version == 17, f"the vectors are those of Java 17, not {version}"
    with gzip.GzipFile(VECTORS, "wb", mtime=0) as file:
        for question, answer in zip(asked, answers, strict=True):
            file.write((json.dumps([question, answer]) + "\n").encode())
    from tests.golden.identity import test_key_choice, test_tokens  # they import this module

    test_tokens.write_vectors()
    test_key_choice.write_vectors()
    print(f"golden: {VECTORS.name} has {VECTORS.stat().st_size} bytes", file=sys.stderr)
