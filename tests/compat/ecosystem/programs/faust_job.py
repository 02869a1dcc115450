"""Counts records by key with Faust: `faust_job.py BOOTSTRAP STATE`."""

from __future__ import annotations

import sys

import faust


def main() -> None:
    bootstrap, directory = sys.argv[1:]
    del sys.argv[1:]
    application = faust.App(
        "counter",
        broker=f"kafka://{bootstrap}",
        datadir=directory,
        store="memory://",  # restored from the changelog topic at each start
        topic_partitions=2,
        topic_replication_factor=1,
        broker_commit_interval=0.5,
        web_enabled=False,
    )
    raw = {"key_serializer": "raw", "value_serializer": "raw", "key_type": bytes}
    words = application.topic("words", value_type=bytes, **raw)
    counts = application.topic("counts", value_type=bytes, **raw)
    table = application.Table("tally", key_type=str, value_type=int, default=int, partitions=2)

    @application.agent(words)
    async def count(stream: faust.StreamT[bytes]) -> None:
        async for key, _ in stream.items():
            word = key.decode()
            table[word] += 1
            await counts.send(key=key, value=str(table[word]).encode())

    faust.Worker(application, loglevel="INFO").execute_from_commandline()


if __name__ == "__main__":
    main()
