"""Counts records by key with Quix Streams, exactly once: `quixstreams_job.py BOOTSTRAP STATE`."""

from __future__ import annotations

import sys

from quixstreams import Application, State


def _count(value: str, state: State) -> str:
    count = int(state.get("count", 0)) + 1
    state.set("count", count)
    return str(count)


def main() -> None:
    bootstrap, directory = sys.argv[1:]
    application = Application(
        broker_address=bootstrap,
        consumer_group="counter",
        auto_offset_reset="earliest",
        state_dir=directory,
        commit_interval=0.5,
        processing_guarantee="exactly-once",
    )
    texts = {"key_deserializer": "str", "value_deserializer": "str"}
    words = application.topic("words", **texts)
    counts = application.topic("counts", key_serializer="str", value_serializer="str")
    application.dataframe(words).apply(_count, stateful=True).to_topic(counts)
    application.run()


if __name__ == "__main__":
    main()
