"""A share group from its first reader to its deletion, with the commands of `ottla` only.

What the commands print is the same on Ottla and on Apache Kafka 4.3.
"""

from __future__ import annotations

from tests.doubles.command_line import CommandLine, Outcome

TOPIC = "jobs"
GROUP = "workers"
COUNT = 10


def play(ottla: CommandLine) -> None:
    """Asserts what each command prints; the topic and the group must not exist."""
    ottla.done("topics", "create", TOPIC)
    missing = f"ottla: share group {GROUP} does not exist; see `ottla share-groups list`.\n"
    for command in ("describe", "offsets"):
        assert ottla("share-groups", command, GROUP) == Outcome(1, "", missing)
    assert ottla("share-groups", "delete", GROUP, "--yes").code == 1

    # A group that has no state begins at the end of the log.
    values = [f"job-{number}" for number in range(COUNT)]
    ottla.done("produce", TOPIC, "-q", text="".join(f"{value}\n" for value in values))
    assert consumed(ottla) == []
    ottla.done("share-groups", "reset", GROUP, TOPIC, "--to-earliest", "--execute")
    assert offset(ottla) == (0, COUNT)
    assert consumed(ottla, "--max", "3") == values[:3]
    assert consumed(ottla, "--max", "2", "--acknowledge", "release") == values[3:5]
    assert consumed(ottla, "--max", "1", "--acknowledge", "reject") == values[3:4]
    listed = ottla.done("share-groups", "list", "--json").value
    assert [(row["group"], row["state"]) for row in listed] == [(GROUP, "Empty")]
    described = ottla.done("share-groups", "describe", GROUP, "--json").value
    assert (described["state"], described["members"]) == ("Empty", [])
    # The start offset is stored with the write after the one that moves it.
    assert offset(ottla) == (3, COUNT)
    assert consumed(ottla) == values[4:]
    assert offset(ottla) == (4, COUNT)

    # A dry run changes nothing.
    reset = ("share-groups", "reset", GROUP, TOPIC)
    dry = ottla.done(*reset, "--to-earliest")
    assert dry.lines[1:] == [[TOPIC, "0", "4", "0"]]
    assert dry.errors == "Dry run: nothing was changed; --execute sets the offsets.\n"
    assert offset(ottla) == (4, COUNT)
    far = ottla.done(*reset, "--to-offset", "99", "--execute", "--json")
    assert far.value["partitions"][0]["after"] == COUNT
    assert "99 is outside of 0..10; set to 10" in far.errors
    ottla.done("share-groups", "reset", GROUP, "--all-topics", "--to-earliest", "--execute")
    assert offset(ottla) == (0, COUNT)
    assert consumed(ottla) == values

    assert ottla.done("share-groups", "delete", GROUP, "--yes", "--json").value == {
        "deleted": [GROUP]
    }
    assert ottla("share-groups", "describe", GROUP) == Outcome(1, "", missing)
    assert ottla.done("share-groups", "list").output == "No share groups.\n"


def consumed(ottla: CommandLine, *options: str) -> list[str]:
    """The values that one member prints."""
    return ottla.done("consume", TOPIC, "--share-group", GROUP, *options).output.splitlines()


def offset(ottla: CommandLine) -> tuple[int, int]:
    """(start offset, log end offset) of the one share partition."""
    (row,) = ottla.done("share-groups", "offsets", GROUP, "--json").value["partitions"]
    return row["start_offset"], row["end"]
