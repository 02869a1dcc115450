"""`ottla transactions find-hanging` and `abort` on transactions that really hang."""

from __future__ import annotations

import json
from pathlib import Path

from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.hanging_transaction import produce_late


def test_what_hangs_is_found_and_aborted(tmp_path: Path) -> None:
    with start_broker(tmp_path, transaction_partition_verification_enable=False) as broker:
        ottla = CommandLine(broker.bootstrap)
        ottla.done("topics", "create", "stuck", "-p", "2")
        ottla.done("produce", "stuck", "-q", "--partition", "1", text="before\n")
        producer_id, error = produce_late(broker.bootstrap, TopicPartition("stuck", 1), b"late")
        assert error == ErrorCode.NONE
        ottla.done("produce", "stuck", "-q", "--partition", "1", text="after\n")
        # The last stable offset stands still, and so do the readers of what is committed.
        assert ottla.done("consume", "stuck", "--read-committed").output == "before\n"
        found = ottla("transactions", "find-hanging", "--json")
        assert (found.code, json.loads(found.errors)) == (
            1,
            {
                "error": "1 transaction(s) hang; `ottla transactions abort` ends one.",
                "exit_code": 1,
            },
        )
        (row,) = found.value
        assert (row["topic"], row["partition"], row["producer_id"]) == ("stuck", 1, producer_id)
        assert row["transaction_start"] == 1
        broker.kill()
        broker.start()  # that does not help
        assert ottla("transactions", "find-hanging", "--json").value == [row]
        ottla.done("transactions", "abort", "stuck:1", "--start-offset", "1", "--yes")
        assert ottla.done("transactions", "find-hanging").output == "No transaction hangs.\n"
        assert ottla.done("consume", "stuck", "--read-committed").output == "before\nafter\n"
        again = ottla("transactions", "abort", "stuck:1", "--start-offset", "1", "--yes")
        assert (again.code, "has no such open transaction" in again.errors) == (1, True)


def test_verification_keeps_it_from_happening(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        ottla = CommandLine(broker.bootstrap)
        ottla.done("topics", "create", "safe")
        _, error = produce_late(broker.bootstrap, TopicPartition("safe", 0), b"late")
        # Clients that know TRANSACTION_ABORTABLE (KIP-890) get that.
        assert error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)
        assert ottla.done("consume", "safe").output == ""
        assert ottla.done("transactions", "find-hanging").output == "No transaction hangs.\n"
