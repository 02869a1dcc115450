"""Exactly once: a two-phase commit of all tasks of a batch, decided by the driver.

First phase. Each task with rows begins a transaction under an id of its own host, writes, flushes
and leaves the transaction open. Its message to the driver names transactional id, producer id and
epoch. A task without rows opens no connection.

Decision. The driver stores one decision for the batch: an offset commit with the list of the
transactions, in the group of the query (and `writeId`). It does so in a transaction under a
transactional id of the driver. The decision is made in the moment in which the coordinator
accepts EndTxn for this transaction: durable (`acks=all`), and atomic whatever the number of groups
that hold the list. A second driver that takes the same transactional id fences the first one, so
that a decision is never made twice.

Second phase. The driver sends EndTxn for each transaction of the list, and aborts all other open
transactions of the write: failed attempts, losing twins of speculation, and what an earlier driver
left behind.

Recovery needs the decision only. If the last decision is about the batch that Spark executes, the
tasks drop their rows and the driver sends EndTxn for its list once more, which is harmless for
those that have ended. If it is about an earlier batch, all rows are written. Neither depends
on how rows were divided over tasks. The driver ends the transactions of a decision before it stores
the next one, so one decision for each write is enough.

docs/spark.md has the table of the steps and of what a crash at each of them leaves.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ottla.protocol.messages.describe_transactions import TransactionState
from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.cluster.connections import client_of
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.sink_options import SinkOptions
from pyspark_ottla.warnings_on_stderr import spark_logger
from pyspark_ottla.write.decisions import (
    Decision,
    Prepared,
    Target,
    Write,
    chunk_groups,
    encode_decision,
)
from pyspark_ottla.write.repeated_writes import check_repetition, check_target, write_again
from pyspark_ottla.write.transactions import OPEN, FencedError, ForgottenError, Transactions

logger = spark_logger()

# The driver's own transaction takes some requests; one that was left open blocks no readers.
DECISION_TIMEOUT_MS = 60_000
# A transaction must have this much of its time left when it is decided, so that EndTxn comes in
# time: ten seconds, or a tenth of a short timeout.
MARGIN_MS = 10_000
# EndTxn for many transactions: a coordinator handles one request of a connection at a time.
ENDING_THREADS = 4
ENDED_BY_ONE_THREAD = 16
# Writes that one process of the driver remembers.
REMEMBERED_WRITES = 64


@dataclass
class Known:
    """What this process knows of a write, as long as no other driver has fenced `producer`."""

    producer: Prepared
    decision: Decision | None
    is_finished: bool = False


# A transaction that could not be committed, and why.
Failed = tuple[Prepared, FencedError]

# By process, brokers and name of the write; the one used least recently goes first.
_known: OrderedDict[tuple[int, str, str], Known] = OrderedDict()


class BatchCommit:
    """The driver's part for one batch; used by one thread.

    `target` is the topic as the tasks found it, `plan` the digest of Spark's journal entry for the
    batch (empty if that is not known).
    """

    def __init__(
        self,
        options: SinkOptions,
        cluster: KafkaCluster,
        write: Write,
        target: Target,
        plan: str = "",
    ) -> None:
        self._options = options
        self._write = write
        self._target = target
        self._plan = plan
        self._cluster = cluster
        self._tasks = Transactions(cluster, options.client.transaction_timeout_ms)
        self._driver = Transactions(cluster, DECISION_TIMEOUT_MS, of_driver=True)
        self._key = (os.getpid(), options.client.bootstrap, write.name)

    def commit(self, transactions: Sequence[Prepared], rows: int) -> bool:
        """Decides for the batch and ends its transactions; false if it was decided before.

        After an error the batch is either undecided, and nothing of it will be visible, or decided,
        and `commit` of the batch's next execution completes it.
        """
        remembered = self._key in _known
        try:
            try:
                return self._commit(transactions, rows)
            except FencedError:
                if not remembered:
                    raise
            # Another process of this driver, or another driver, has decided since: look again.
            self._forget()
            return self._commit(transactions, rows)
        except BaseException:
            self._forget()  # `abort` settles what the coordinator has accepted
            raise

    def abort(self, transactions: Sequence[Prepared]) -> None:
        """Aborts the batch, unless it has been decided.

        Spark calls this after a failed commit, too. A decision whose outcome `commit` could not
        learn is settled first.
        """
        self._forget()
        known = self._load()
        if known.decision is not None and known.decision.job == self._write.job:
            self._finish(known)
            return
        self._abort(transactions)
        if known.decision is None or not self._is_of_another_target(known.decision):
            self._sweep(transactions)

    # --- steps -----------------------------------------------------------------------------------

    def _commit(self, transactions: Sequence[Prepared], rows: int) -> bool:
        known = self._load()
        check_target(known.decision, self._write, self._target)
        if known.decision is not None and known.decision.batch_id >= self._write.batch_id:
            self._drop(known, known.decision, transactions, rows)
            return False
        if known.decision is None and self._write.batch_id > 0:
            logger.warning(
                "%s is the first one with a decision. If the query has written exactly once before "
                "and stood still for longer than offsets.retention.minutes, this batch may be "
                "there twice",
                self._write.describe(),
            )
        self._finish(known)
        if transactions:
            self._decide(known, transactions, rows)
            self._finish(known)
        self._sweep(transactions)
        return True

    def _load(self) -> Known:
        """Takes the driver's transactional id, which settles an open decision, and reads the last
        decision. What this process knows holds until another driver takes the id."""
        known = _known.get(self._key)
        if known is None:
            producer = self._driver.begin(self._write.driver_id)
            known = Known(producer, self._driver.decision(self._write.name, is_fenced=True))
            _known[self._key] = known
            while len(_known) > REMEMBERED_WRITES:
                _known.popitem(last=False)
        _known.move_to_end(self._key)
        return known

    def _forget(self) -> None:
        _known.pop(self._key, None)

    def _decide(self, known: Known, transactions: Sequence[Prepared], rows: int) -> None:
        """Stores the decision. The batch is decided when the coordinator has accepted EndTxn."""
        write = self._write
        decision = Decision(
            write.batch_id,
            write.job,
            write.run,
            rows,
            tuple(transactions),
            self._target,
            self._plan,
            write.query,
        )
        texts = encode_decision(write.name, decision)
        groups = chunk_groups(write.name, len(texts))
        assert self._options.topic is not None
        # Brokers take offsets of partitions that exist only; this one is where records go.
        place = TopicPartition(self._options.topic, 0)
        stored = dict(zip(groups, texts, strict=True))
        self._driver.store(known.producer, place, write.batch_id + 1, stored)
        self._check_open(transactions)
        self._driver.end(known.producer, committed=True)
        known.decision, known.is_finished = decision, False

    def _check_open(self, transactions: Sequence[Prepared]) -> None:
        """Raises ConnectorError unless each can still be committed, with some time left.

        All times are those of the coordinators; that of the driver's transaction, which was begun
        just now, is the present.
        """
        wanted = [self._write.driver_id, *(row.transactional_id for row in transactions)]
        found = self._tasks.describe(wanted)
        if found is None:
            return
        now_ms = found[self._write.driver_id].transaction_start_time_ms
        for transaction in transactions:
            problem = _why_not_decided(transaction, found[transaction.transactional_id], now_ms)
            if problem:
                timeout_ms = self._options.client.transaction_timeout_ms
                raise ConnectorError(
                    errors.TRANSACTION_TIMED_OUT,
                    f"{self._write.describe()} is not committed: the transaction "
                    f"{transaction.transactional_id} of one of its tasks {problem}. Nothing of "
                    "the batch is visible; it is written again when it is executed again",
                    "All tasks of a batch must end within kafka.transaction.timeout.ms "
                    f"({timeout_ms} ms). Raise it and the brokers' transaction.max.timeout.ms, or "
                    "make batches smaller",
                )

    def _finish(self, known: Known) -> None:
        """Ends the transactions of the decision; those that have ended stay as they are."""
        decision = known.decision
        if decision is None or known.is_finished:
            return
        failed = self._end_all(decision.transactions)
        self._report_lost(decision, [row for row, error in failed if not _is_forgotten(error)])
        self._report_forgotten(decision, [row for row, error in failed if _is_forgotten(error)])
        known.is_finished = True

    def _end_all(self, transactions: Sequence[Prepared]) -> list[Failed]:
        """Commits all of them; returns those that the coordinator has aborted or forgotten."""
        if len(transactions) <= ENDED_BY_ONE_THREAD:
            return _end_some(self._tasks, transactions)
        shares = [transactions[number::ENDING_THREADS] for number in range(ENDING_THREADS)]
        with ThreadPoolExecutor(ENDING_THREADS, "ottla commit") as pool:
            return [failed for share in pool.map(self._end_share, shares) for failed in share]

    def _end_share(self, transactions: Sequence[Prepared]) -> list[Failed]:
        with client_of(self._options.client) as client:
            cluster = KafkaCluster(client, self._options.client)
            tasks = Transactions(cluster, self._options.client.transaction_timeout_ms)
            return _end_some(tasks, transactions)

    def _report_lost(self, decision: Decision, lost: Sequence[Prepared]) -> None:
        if not lost:
            return
        sentence = (
            f"{self._decided(decision, lost)}, but their coordinator has aborted them "
            f"({_first_ids(lost)}): their records are lost"
        )
        hint = (
            "No EndTxn reached the coordinator within kafka.transaction.timeout.ms after the "
            "decision. To write the whole batch again, and the records of its other transactions "
            f"twice, delete the group {self._write.name}; to continue without these records, set "
            "the option failOnDataLoss to false"
        )
        self._report(sentence, hint)

    def _report_forgotten(self, decision: Decision, forgotten: Sequence[Prepared]) -> None:
        """Longer ago than transactional.id.expiration.ms they were committed, or timed out."""
        if not forgotten:
            return
        sentence = (
            f"{self._decided(decision, forgotten)}, and ended so long ago that their coordinator "
            f"has forgotten how ({_first_ids(forgotten)})"
        )
        if self._write.batch_id > decision.batch_id:
            # A batch is executed when the one before was committed.
            logger.warning(
                "%s; that %s is written shows that they were committed",
                *(sentence, self._write.describe()),
            )
            return
        hint = (
            "If that write was reported as done, or its records are in the topic, nothing is lost: "
            "set the option failOnDataLoss to false to continue. If its records are not there, "
            f"delete the group {self._write.name} to write them again"
        )
        self._report(sentence, hint)

    def _decided(self, decision: Decision, some: Sequence[Prepared]) -> str:
        return (
            f"{len(some)} of {len(decision.transactions)} transactions of batch "
            f"{decision.batch_id} of {self._write.name} were decided to be committed"
        )

    def _report(self, sentence: str, hint: str) -> None:
        error = ConnectorError(errors.DECIDED_TRANSACTION_LOST, sentence, hint)
        if self._options.fail_on_data_loss:
            raise error
        logger.error("%s", error)

    def _drop(
        self, known: Known, decision: Decision, transactions: Sequence[Prepared], rows: int
    ) -> None:
        """Completes the decision that exists, and aborts what was written in spite of it."""
        decided = set(decision.transactions)
        self._abort([row for row in transactions if row not in decided])
        self._finish(known)
        write_again(decision, self._write)  # raises what is wrong with this batch
        self._sweep(decision.transactions)
        try:
            check_repetition(decision, self._write, self._plan, rows)
        except ConnectorError as error:
            if self._options.fail_on_data_loss or not self._write.is_numbered:
                raise
            logger.error("%s", error)
        logger.warning(
            "%s was decided before, with %d rows; the %d rows of this execution are dropped",
            self._write.describe(),
            decision.rows,
            rows,
        )

    def _is_of_another_target(self, decision: Decision) -> bool:
        return decision.target is not None and decision.target.is_other_than(self._target)

    def _abort(self, transactions: Iterable[Prepared]) -> None:
        """All, until one fails that took its time, as each does whose coordinator is away."""
        deadline = time.monotonic() + self._options.client.api_timeout_ms / 2000  # half of it
        for transaction in transactions:
            try:
                self._tasks.end(transaction, committed=False)
            except ConnectorError as error:
                # Nothing can commit it any more, and the coordinator aborts it in the end.
                logger.warning("%s is left to its timeout: %s", transaction.transactional_id, error)
                if time.monotonic() >= deadline:
                    logger.warning("so are the others of %s", self._write.describe())
                    return

    def _sweep(self, kept: Sequence[Prepared]) -> None:
        """Aborts the open transactions of the write that are not in the decision."""
        names = {transaction.transactional_id for transaction in kept}
        try:
            for identifier in self._tasks.open_ids(self._write.name):
                if identifier not in names:
                    self._tasks.begin(identifier)
        except ConnectorError as error:
            # They delay readers until the next batch or their timeout, and are never committed.
            logger.warning("Open transactions of %s are left: %s", self._write.name, error)


def _why_not_decided(wanted: Prepared, found: TransactionState, now_ms: int) -> str:
    """What is wrong with a prepared transaction; empty if it can be decided."""
    identity = (found.producer_id, found.producer_epoch)
    if found.transaction_state != OPEN or identity != (wanted.producer_id, wanted.epoch):
        state = found.transaction_state or "unknown"
        return f"has ended before the decision (state {state}, epoch {found.producer_epoch})"
    left_ms = found.transaction_start_time_ms + found.transaction_timeout_ms - now_ms
    if left_ms < min(MARGIN_MS, found.transaction_timeout_ms // 10):
        return f"would time out within {max(0, left_ms)} ms"
    return ""


def _end_some(tasks: Transactions, transactions: Sequence[Prepared]) -> list[Failed]:
    tasks.find_coordinators([row.transactional_id for row in transactions])
    failed = []
    for transaction in transactions:
        try:
            tasks.end(transaction, committed=True)
        except FencedError as error:
            failed.append((transaction, error))
    return failed


def _first_ids(transactions: Sequence[Prepared]) -> str:
    return ", ".join(transaction.transactional_id for transaction in transactions[:5])


def _is_forgotten(error: FencedError) -> bool:
    return isinstance(error, ForgottenError)
