"""kcat (Debian's package: librdkafka from a shell) against one broker.

kcat has no admin requests, so its topics are created by their first record, with one partition.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

from tests.compat.suites.reporting import (
    BOOTSTRAP,
    BROKERS,
    CODECS,
    DEADLINE_S,
    PREFIX,
    VERSION,
    check,
    equal,
    feature,
    run_all,
    until,
)


def kcat(*arguments: str, text: bytes = b"") -> str:
    done = subprocess.run(
        ["kcat", "-b", BOOTSTRAP, "-m", "30", *arguments],
        input=text, capture_output=True, timeout=DEADLINE_S * 2,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(done.stderr.decode(errors="replace")[-300:])
    return done.stdout.decode(errors="surrogateescape")


def read(topic: str, *arguments: str) -> list[dict]:
    output = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-J", "-q", *arguments)
    return [json.loads(line) for line in output.splitlines()]


def round_trip(name: str, *arguments: str) -> None:
    topic = f"{PREFIX}-{name}"
    text = "".join(f"k{n}:{f'value-{n}' * 10}\n" for n in range(300)).encode()
    kcat("-P", "-t", topic, "-K:", *arguments, text=text)
    found = [(row["offset"], row["key"], row["payload"]) for row in read(topic)]
    equal(found, [(n, f"k{n}", f"value-{n}" * 10) for n in range(300)])


@feature("connect")
def connect() -> None:
    version = subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout
    assert f"Version {VERSION} " in version, f"pinned {VERSION}, here {version}"
    assert f"{BROKERS} brokers" in kcat("-L")


@feature("auto-create")
def auto_create() -> None:
    kcat("-P", "-t", f"{PREFIX}-auto", text=b"v\n")
    equal([row["payload"] for row in read(f"{PREFIX}-auto")], ["v"])


@feature("list-topics")
def list_topics() -> None:
    found = json.loads(kcat("-L", "-J"))
    assert f"{PREFIX}-auto" in [topic["topic"] for topic in found["topics"]]


@feature("headers")
def headers() -> None:
    topic = f"{PREFIX}-headers"
    kcat("-P", "-t", topic, "-H", "n=1", "-H", "n=2", "-H", "none", text=b"v\n")
    equal(read(topic)[0]["headers"], ["n", "1", "n", "2", "none", None])


@feature("null-values")
def null_values() -> None:
    topic = f"{PREFIX}-null"
    kcat("-P", "-t", topic, "-K:", "-Z", text=b"k:\n:v\n")
    equal([(row["key"], row["payload"]) for row in read(topic)], [("k", None), (None, "v")])


@feature("large-record")
def large_record() -> None:
    value = bytes(range(65, 91)) * 30000
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(value)
        kcat("-P", "-t", f"{PREFIX}-large", file.name)
    equal(len(read(f"{PREFIX}-large")[0]["payload"]), len(value))


@feature("idempotent")
def idempotent() -> None:
    round_trip("idempotent", "-X", "enable.idempotence=true")


@feature("consume")
def consume() -> None:
    round_trip("consume")


@feature("list-offsets")
def list_offsets() -> None:
    topic = f"{PREFIX}-consume"
    equal(kcat("-Q", "-t", f"{topic}:0:-1").split()[-1], "300")
    equal(kcat("-Q", "-t", f"{topic}:0:-2").split()[-1], "0")


@feature("seek-by-time")
def seek_by_time() -> None:
    topic = f"{PREFIX}-consume"
    moment = read(topic)[0]["ts"]
    assert len(read(topic, "-o", f"s@{moment}")) == 300
    found = kcat("-Q", "-t", f"{topic}:0:{moment}")
    assert re.search(r"offset 0$", found.strip()), found


@feature("group")
def group() -> None:
    output = kcat("-G", f"{PREFIX}-g", "-X", "auto.offset.reset=earliest", "-c", "300", "-q",
                  "-f", "%o\n", f"{PREFIX}-consume")  # fmt: skip
    equal([int(line) for line in output.split()], list(range(300)))


@feature("group-commit")
def group_commit() -> None:
    kcat("-P", "-t", f"{PREFIX}-consume", text=b"later\n")
    output = kcat("-G", f"{PREFIX}-g", "-X", "auto.offset.reset=earliest", "-c", "1", "-q",
                  "-f", "%o %s\n", f"{PREFIX}-consume")  # fmt: skip
    equal(output.split(), ["300", "later"])


@feature("group-cooperative")
def group_cooperative() -> None:
    output = kcat("-G", f"{PREFIX}-gx", "-X", "auto.offset.reset=earliest", "-c", "301", "-q", "-X",
                  "partition.assignment.strategy=cooperative-sticky", "-f", "%o\n",
                  f"{PREFIX}-consume")  # fmt: skip
    equal([int(line) for line in output.split()], list(range(301)))


@feature("static-member")
def static_member() -> None:
    for first in (0, 5):
        output = kcat("-G", f"{PREFIX}-gs", "-X", "auto.offset.reset=earliest", "-c", "5", "-q",
                      "-X", "group.instance.id=one", "-f", "%o\n",
                      f"{PREFIX}-consume")  # fmt: skip
        equal([int(line) for line in output.split()], list(range(first, first + 5)))


@feature("txn-commit")
def txn_commit() -> None:
    topic = f"{PREFIX}-txn"
    kcat("-P", "-t", topic, "-X", f"transactional.id={PREFIX}-t", text=b"a\nb\n")
    rows = until(lambda: read(topic, "-X", "isolation.level=read_committed"), "nothing committed")
    equal([row["payload"] for row in rows], ["a", "b"])


for acks in ("0", "1", "all"):
    # Without an acknowledgement kcat may leave before its topic is there.
    check(f"acks-{acks}", lambda acks=acks: round_trip(f"acks-{acks}", "-X", f"acks={acks}"))
for codec in CODECS:
    check(f"codec-{codec}", lambda codec=codec: round_trip(codec, "-z", codec))
run_all()
