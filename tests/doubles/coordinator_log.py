"""A coordinator's log in memory, whose commits can be held back, failed or lost in a crash."""

from collections import defaultdict, deque
from collections.abc import Iterator

from ottla.broker.coordination.ports import AppendResult
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import patch_base_offset, read_header
from ottla.protocol.records.errors import CorruptRecordError
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from ottla.storage.producer.verification import Verification, Verifications


class MemoryLog:
    """Satisfies `CoordinatorLog`. Appends are committed at once unless `hold` is set.

    `next_error` fails the next append. `held` are appends in the log that are not committed yet:
    `commit_one` and `commit_all` commit them in order, `lose_held` is what a crash does to them.
    `damaged` are batches, by partition and base offset, whose header cannot be read.
    """

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.end_offsets: dict[int, int] = {}
        self.damaged: set[tuple[int, int]] = set()
        self.next_error = 0
        self.hold = False
        self.held: deque[tuple[int, int, AppendResult]] = deque()
        self.appends = 0
        self.verifies = False
        self.open_transactions: set[tuple[int, int]] = set()
        self.verifications: dict[int, Verifications] = defaultdict(lambda: Verifications(True))

    def begin_verification(
        self, partition: int, producer_id: int, producer_epoch: int, now_ms: int
    ) -> Verification | None:
        """A guard unless `verifies` is off or the producer's transaction is open already."""
        if not self.verifies or (partition, producer_id) in self.open_transactions:
            return None
        return self.verifications[partition].begin(producer_id, producer_epoch, -1, now_ms)

    def is_valid(self, partition: int, guard: Verification) -> bool:
        return self.verifications[partition].allows(guard.producer_id, guard)

    def append(
        self,
        partition: int,
        batch: bytes,
        on_result: AppendResult,
        guard: Verification | None = None,
    ) -> None:
        self.appends += 1
        if self.next_error:
            error, self.next_error = self.next_error, 0
            on_result(error, -1)
            return
        stored = bytearray(batch)
        header = read_header(stored)
        if header.is_transactional:
            is_open = (partition, header.producer_id) in self.open_transactions
            is_allowed = self.verifications[partition].allows(header.producer_id, guard)
            if self.verifies and not (is_open or is_allowed or header.is_control):
                on_result(ErrorCode.INVALID_TXN_STATE, -1)
                return
            self.verifications[partition].end(header.producer_id)
            self.open_transactions.add((partition, header.producer_id))
        if header.is_control:
            self.open_transactions.discard((partition, header.producer_id))
        base_offset = self.end_offsets.get(partition, 0)
        patch_base_offset(stored, 0, base_offset, 0)
        self.end_offsets[partition] = base_offset + header.record_count
        self.batches.setdefault(partition, []).append(bytes(stored))
        if self.hold:
            self.held.append((partition, base_offset, on_result))
        else:
            on_result(0, base_offset)

    def log_end_offset(self, partition: int) -> int:
        return self.end_offsets.get(partition, 0)

    def segment_end_offset(self, partition: int, offset: int) -> int:
        """Each batch is a segment of its own."""
        bases = [read_header(batch).base_offset for batch in self.batches.get(partition, ())]
        following = (base for base in bases if base > offset)
        return min(following, default=self.log_end_offset(partition))

    def roll_segment(self, partition: int, now_ms: int) -> None:
        """Each batch is a segment of its own."""

    def read_batches(self, partition: int, from_offset: int = 0) -> Iterator[memoryview]:
        # A list, as the log ends where it does at the time of the call.
        wanted = []
        for batch in self.batches.get(partition, ()):
            header = read_header(batch)
            if header.last_offset >= from_offset:
                wanted.append((header.base_offset, memoryview(batch)))
        return self._read(partition, wanted)

    def _read(self, partition: int, batches: list[tuple[int, memoryview]]) -> Iterator[memoryview]:
        for base_offset, batch in batches:
            if (partition, base_offset) in self.damaged:
                raise CorruptRecordError(f"the batch at offset {base_offset} is damaged")
            yield batch

    def commit_one(self) -> None:
        _, base_offset, on_result = self.held.popleft()
        on_result(0, base_offset)

    def commit_all(self) -> None:
        while self.held:
            self.commit_one()

    def fail_all(self, error_code: int) -> None:
        """The held appends are cut off the log and fail."""
        lost = list(self.held)
        self.lose_held()
        for _, _, on_result in lost:
            on_result(error_code, -1)

    def time_out_all(self, error_code: int) -> None:
        """The held appends stay in the log and are committed later; their callers hear an error."""
        late = list(self.held)
        self.held.clear()
        for _, _, on_result in late:
            on_result(error_code, -1)

    def lose_held(self) -> None:
        """A crash: what was not committed is gone, without a notification."""
        for partition, base_offset, _ in reversed(self.held):
            self.batches[partition].pop()
            self.end_offsets[partition] = base_offset
        self.held.clear()

    def records(self, partition: int) -> list[Record]:
        """Everything in the log of a partition, markers apart."""
        return [
            record for batch in self.batches.get(partition, ()) for record in read_records(batch)
        ]
