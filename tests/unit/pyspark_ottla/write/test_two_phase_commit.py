"""The driver's part: decisions, their completion, and what is refused."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ottla.protocol.client.errors import BrokerConnectionError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.sink_options import parse_sink_options
from pyspark_ottla.write import two_phase_commit
from pyspark_ottla.write.decisions import Decision, Prepared, Target, Write, transactional_id
from pyspark_ottla.write.repeated_writes import write_again
from pyspark_ottla.write.transactions import FencedError, Transactions
from pyspark_ottla.write.two_phase_commit import BatchCommit
from tests.doubles.scripted_coordinator import TIMEOUT_MS, ScriptedCoordinator

NAME, HOST = "pyspark-ottla-q", "0123456789ab"
WRITE = Write(NAME, 3, "a" * 32, "run-1")
PLACE = TopicPartition("t", 0)
TARGET = Target("cluster", "t", "id-of-t")


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    two_phase_commit._known.clear()
    yield ScriptedCoordinator()
    two_phase_commit._known.clear()


def batch(
    coordinator: ScriptedCoordinator,
    write: Write = WRITE,
    target: Target = TARGET,
    plan: str = "",
    **given: str,
) -> BatchCommit:
    options = parse_sink_options(
        {
            "kafka.bootstrap.servers": "b:1",
            "topic": "t",
            "delivery": "exactly-once",
            "kafka.default.api.timeout.ms": "300",
            **given,
        }
    )
    cluster = KafkaCluster(coordinator.as_client, options.client)
    return BatchCommit(options, cluster, write, target, plan)


def prepared(coordinator: ScriptedCoordinator, *slots: int) -> list[Prepared]:
    """Open transactions of tasks."""
    options = parse_sink_options({"kafka.bootstrap.servers": "b:1"}).client
    wire = Transactions(KafkaCluster(coordinator.as_client, options), TIMEOUT_MS)
    found = []
    for slot in slots:
        found.append(wire.begin(transactional_id(NAME, HOST, slot)))
        wire.add_partitions(found[-1], [PLACE])
    return found


def states(coordinator: ScriptedCoordinator) -> dict[int, str]:
    """Of the transactions of tasks, by slot."""
    return {
        int(name.rpartition("-")[2]): state.transaction_state
        for name, state in coordinator.states.items()
        if not name.endswith("-driver")
    }


def test_a_batch_is_decided_and_then_ended(coordinator: ScriptedCoordinator) -> None:
    some = prepared(coordinator, 0, 1)
    prepared(coordinator, 2)  # the losing twin of a task
    coordinator.sent.clear()
    assert batch(coordinator).commit(some, 20)
    assert states(coordinator) == {0: "CompleteCommit", 1: "CompleteCommit", 2: "Empty"}
    assert coordinator.groups[NAME][0] == 4
    kinds = coordinator.kinds()
    assert kinds[:2] == ["InitProducerId", "OffsetFetch"]
    order = ["AddOffsetsToTxn", "TxnOffsetCommit", "DescribeTransactions", "EndTxn", "EndTxn"]
    assert [kind for kind in kinds if kind in order] == [*order, "EndTxn"]


def test_a_second_batch_needs_neither_a_new_epoch_nor_a_read(
    coordinator: ScriptedCoordinator,
) -> None:
    batch(coordinator).commit(prepared(coordinator, 0), 1)
    some = prepared(coordinator, 1)
    coordinator.sent.clear()
    assert batch(coordinator, WRITE._replace(batch_id=4)).commit(some, 1)
    assert not {"InitProducerId", "OffsetFetch"} & set(coordinator.kinds())


def test_a_repeated_batch_completes_the_decision_and_drops_its_rows(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    first = prepared(coordinator, 0, 1)
    coordinator.codes[EndTxnRequest] = [0, 0, ErrorCode.UNKNOWN_SERVER_ERROR]
    with pytest.raises(ConnectorError, match="UNKNOWN_SERVER_ERROR"):
        batch(coordinator, plan="journal").commit(first, 20)
    assert states(coordinator) == {0: "CompleteCommit", 1: "Ongoing"}
    again = prepared(coordinator, 2)
    with caplog.at_level(logging.WARNING):
        other = WRITE._replace(job="b" * 32, run="run-2")
        assert not batch(coordinator, other, plan="journal").commit(again, 19)
    assert states(coordinator) == {0: "CompleteCommit", 1: "CompleteCommit", 2: "CompleteAbort"}
    assert "with 20 rows; the 19 rows of this execution are dropped" in caplog.text


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target("cluster", "u", "id-of-u"), "went to the topic t, not to u"),
        (Target("other", "t", "id-of-t"), "of the cluster cluster, not of other"),
        (Target("cluster", "t", "new"), r"earlier topic t \(id id-of-t\), .* since \(id new\)"),
    ],
)
@pytest.mark.parametrize("number", [3, 4])
def test_a_decision_about_another_topic_is_refused(
    coordinator: ScriptedCoordinator, target: Target, text: str, number: int
) -> None:
    batch(coordinator).commit(prepared(coordinator, 0), 20)
    prepared(coordinator, 1)  # of the other query, which is writing
    two_phase_commit._known.clear()
    other = batch(coordinator, Write(NAME, number, "b" * 32, "run-2"), target)
    some = prepared(coordinator, 2)
    with pytest.raises(ConnectorError, match=rf"WRITE_ID_NEEDED.*{text}.*option writeId"):
        other.commit(some, 20)
    other.abort(some)
    assert states(coordinator) == {0: "CompleteCommit", 1: "Ongoing", 2: "CompleteAbort"}


@pytest.mark.parametrize(
    ("plan", "rows", "text"),
    [
        ("planned anew", 20, "a batch that was planned at another time"),
        ("", 21, "a batch with 20 rows, and this one has 21"),
    ],
)
def test_a_batch_of_a_restored_checkpoint_is_not_dropped(
    coordinator: ScriptedCoordinator, plan: str, rows: int, text: str
) -> None:
    batch(coordinator, plan="journal").commit(prepared(coordinator, 0), 20)
    two_phase_commit._known.clear()
    again = WRITE._replace(job="b" * 32, run="run-2")
    with pytest.raises(ConnectorError, match=rf"BATCH_NUMBERS_RESTARTED.*{text}.*writeId"):
        batch(coordinator, again, plan=plan).commit([], rows)
    lax = batch(coordinator, again, plan=plan, failOnDataLoss="false")
    assert not lax.commit([], rows)


def test_a_batch_of_another_query_with_the_same_write_id_is_not_dropped(
    coordinator: ScriptedCoordinator,
) -> None:
    batch(coordinator, WRITE._replace(query="q1")).commit(prepared(coordinator, 0), 20)
    two_phase_commit._known.clear()
    other = WRITE._replace(job="b" * 32, run="run-2", query="q2")
    with pytest.raises(ConnectorError, match=r"WRITE_ID_NEEDED.*by the query q1, and this is.*q2"):
        batch(coordinator, other).commit([], 20)


def test_an_earlier_decision_is_completed_before_the_next_one(
    coordinator: ScriptedCoordinator,
) -> None:
    first = prepared(coordinator, 0)
    coordinator.codes[EndTxnRequest] = [0, ErrorCode.UNKNOWN_SERVER_ERROR]
    with pytest.raises(ConnectorError):
        batch(coordinator).commit(first, 1)
    second = prepared(coordinator, 1)
    batch(coordinator, WRITE._replace(batch_id=4)).commit(second, 1)
    assert states(coordinator) == {0: "CompleteCommit", 1: "CompleteCommit"}


def test_a_batch_without_rows_stores_nothing(coordinator: ScriptedCoordinator) -> None:
    assert batch(coordinator).commit([], 0)
    assert not coordinator.groups


def test_abort(coordinator: ScriptedCoordinator) -> None:
    some = prepared(coordinator, 0)
    prepared(coordinator, 1)
    batch(coordinator).abort(some)
    assert states(coordinator) == {0: "CompleteAbort", 1: "Empty"}


def test_abort_after_the_decision_completes_it(coordinator: ScriptedCoordinator) -> None:
    some = prepared(coordinator, 0)
    coordinator.codes[EndTxnRequest] = [0, ErrorCode.UNKNOWN_SERVER_ERROR]
    with pytest.raises(ConnectorError):
        batch(coordinator).commit(some, 1)
    batch(coordinator).abort(some)
    assert states(coordinator) == {0: "CompleteCommit"}


def test_abort_does_not_wait_for_each_transaction_of_a_coordinator_that_is_away(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    some = prepared(coordinator, *range(10))
    coordinator.response(EndTxnRequest, lambda _: BrokerConnectionError("away"))
    batch(coordinator, **{"kafka.default.api.timeout.ms": "900"}).abort(some)
    assert caplog.text.count("is left to its timeout") == 1
    assert "so are the others of batch 3" in caplog.text


def test_another_driver_fences_this_one(coordinator: ScriptedCoordinator) -> None:
    batch(coordinator).commit(prepared(coordinator, 0), 1)
    remembered = dict(two_phase_commit._known)
    two_phase_commit._known.clear()  # as another process
    other = WRITE._replace(batch_id=4, job="b" * 32, run="run-2")
    batch(coordinator, other).commit(prepared(coordinator, 1), 1)
    two_phase_commit._known.clear()
    two_phase_commit._known.update(remembered)
    late = prepared(coordinator, 2)
    assert not batch(coordinator, WRITE._replace(batch_id=4)).commit(late, 1)
    assert states(coordinator) == {0: "CompleteCommit", 1: "CompleteCommit", 2: "CompleteAbort"}


def test_a_driver_that_is_fenced_at_once_gives_up(coordinator: ScriptedCoordinator) -> None:
    some = prepared(coordinator, 0)
    coordinator.codes[AddOffsetsToTxnRequest] = [ErrorCode.PRODUCER_FENCED]
    with pytest.raises(FencedError, match="longer than 60000 ms, or another driver") as raised:
        batch(coordinator).commit(some, 1)
    assert "kafka.transaction.timeout.ms" not in str(raised.value), "that of tasks"
    assert not coordinator.groups


def test_a_transaction_that_has_ended_is_not_decided(coordinator: ScriptedCoordinator) -> None:
    some = prepared(coordinator, 0, 1)
    coordinator.states[some[1].transactional_id].transaction_state = "CompleteAbort"
    with pytest.raises(ConnectorError, match=r"TRANSACTION_TIMED_OUT.*state CompleteAbort"):
        batch(coordinator).commit(some, 1)
    batch(coordinator).abort(some)
    assert not coordinator.groups
    assert states(coordinator)[0] == "CompleteAbort"


def test_a_transaction_that_is_about_to_time_out_is_not_decided(
    coordinator: ScriptedCoordinator,
) -> None:
    some = prepared(coordinator, 0)
    coordinator.now_ms += TIMEOUT_MS - 4000
    with pytest.raises(ConnectorError, match=r"within 4000 ms.*transaction\.timeout\.ms \(900000"):
        batch(coordinator).commit(some, 1)
    assert not coordinator.groups


def test_a_decided_transaction_that_was_aborted_is_loud(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    some = prepared(coordinator, 0, 1)
    coordinator.codes[EndTxnRequest] = [0, ErrorCode.INVALID_PRODUCER_EPOCH]
    with pytest.raises(ConnectorError, match=r"DECIDED_TRANSACTION_LOST.*1 of 2 transactions"):
        batch(coordinator).commit(some, 1)
    assert states(coordinator)[1] == "CompleteCommit", "the others are committed"
    coordinator.states[some[0].transactional_id].transaction_state = "CompleteAbort"
    again = WRITE._replace(run="run-2", job="b" * 32)
    with pytest.raises(ConnectorError, match="DECIDED_TRANSACTION_LOST"):
        batch(coordinator, again).commit([], 0)
    with caplog.at_level(logging.ERROR):
        assert not batch(coordinator, again, failOnDataLoss="false").commit([], 0)
    assert "DECIDED_TRANSACTION_LOST" in caplog.text


def test_a_query_that_stood_still_for_longer_than_transactional_ids_are_kept(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """With an offsets.retention.minutes above transactional.id.expiration.ms."""
    batch(coordinator).commit(prepared(coordinator, 0), 1)
    two_phase_commit._known.clear()  # as another process
    following = WRITE._replace(batch_id=4, run="run-2", job="b" * 32)
    some = prepared(coordinator, 1)
    coordinator.codes[EndTxnRequest] = [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    with caplog.at_level(logging.WARNING):
        assert batch(coordinator, following).commit(some, 1)
    assert "has forgotten how" in caplog.text
    assert states(coordinator)[1] == "CompleteCommit"


def test_a_decided_batch_that_is_repeated_after_its_transactions_are_forgotten(
    coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    batch(coordinator).commit(prepared(coordinator, 0), 1)
    two_phase_commit._known.clear()
    again = WRITE._replace(run="run-2", job="b" * 32)
    coordinator.codes[EndTxnRequest] = [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    with pytest.raises(ConnectorError, match=r"1 of 1 .*forgotten how.*reported as done") as raised:
        batch(coordinator, again).commit([], 0)
    assert "records are lost" not in str(raised.value)
    assert not batch(coordinator, again, failOnDataLoss="false").commit([], 0)
    assert "has forgotten how" in caplog.text


def test_many_transactions_are_ended_by_several_threads(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pyspark_ottla.cluster.connections.connect", lambda _: coordinator.as_client
    )
    some = prepared(coordinator, *range(50))
    batch(coordinator).commit(some, 1)
    assert set(states(coordinator).values()) == {"CompleteCommit"}


DECISION = Decision(3, "a" * 32, "run-1", 1, ())


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (None, True),
        (DECISION._replace(batch_id=2), True),
        (DECISION, False),
        (DECISION._replace(job="b" * 32, run="run-0"), False),
    ],
)
def test_whether_tasks_write(decision: Decision | None, expected: bool) -> None:
    assert write_again(decision, WRITE) is expected


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (DECISION._replace(batch_id=9), "BATCH_NUMBERS_RESTARTED.*batch 3 of.*batch 9 has been"),
        (DECISION._replace(job="b" * 32), "WRITE_ID_NEEDED.*second write to the same topic"),
    ],
)
def test_what_is_refused(decision: Decision, text: str) -> None:
    with pytest.raises(ConnectorError, match=text):
        write_again(decision, WRITE)


def test_the_advice_for_a_second_write_does_not_double_the_first_one() -> None:
    with pytest.raises(ConnectorError) as raised:
        write_again(DECISION._replace(job="b" * 32), WRITE)
    assert "Give the second one an option writeId" in str(raised.value)
    assert "leave the first one as it is" in str(raised.value)
    assert not write_again(DECISION, WRITE._replace(run="run-2")), "so it is recognised"
    assert "repeated after a failure, let the batch fail" in str(raised.value)


def test_a_write_id_is_for_one_write(coordinator: ScriptedCoordinator) -> None:
    write = Write(f"{NAME}", 0, "a" * 32, is_numbered=False)
    batch(coordinator, write).commit(prepared(coordinator, 0), 20)
    again = write._replace(job="b" * 32)
    assert not batch(coordinator, again).commit([], 20)
    with pytest.raises(ConnectorError, match=r"WRITE_ID_REUSED.*20 rows.*this job has 3"):
        batch(coordinator, again).commit([], 3)


COMMITTED = """
import pickle, sys
from pyspark_ottla.write.decisions import TaskResult, Write
from pyspark_ottla.write.writer import TaskMessage
message = TaskMessage(TaskResult(1, 2, {}), Write("q", 0, "a" * 32))
pickle.loads(pickle.dumps(message))
import pyspark_ottla.write.stream_writer
import pyspark_ottla.write.two_phase_commit
print([name for name in ("numpy", "pyarrow", "pandas") if name in sys.modules])
"""


def test_the_drivers_process_imports_no_library_of_rows() -> None:
    """Spark starts one for the first commit of a query, and another one after a minute's pause."""
    done = subprocess.run(
        [sys.executable, "-c", COMMITTED], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
