"""Where a streaming query stands and how far its next batch goes. Driver only; knows no Spark.

Spark calls for the initial offset twice, and once more when it recovers its very first batch, and
each time "latest" may be elsewhere. What it was the first time is therefore written into the end of
the first batch (the mark `@start`, see `offsets`), which Spark keeps in its journal.

Partitions that appear in a running query are read from their beginning. Partitions that disappear
while they are wanted are a loss: an error before anything is noted in the journal, or a warning,
and then the batches that follow are without them. Partitions that are not subscribed to any more
leave without either, when nothing of them is left to read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    StreamOffset,
    describe,
    describe_all,
)
from pyspark_ottla.options.options import Position, SourceOptions
from pyspark_ottla.read.planning import Cluster, LossReport, all_at, resolve
from pyspark_ottla.read.splitting import backlog, limit_offsets
from pyspark_ottla.warnings_on_stderr import spark_logger

logger = spark_logger()

# Commits only show the position to other tools: they may not hold up a batch for long, and after a
# failure they are left alone for a while.
COMMIT_TIMEOUT_MS = 5_000
COMMIT_PAUSE_SECONDS = 30.0
# A broker that has just started may know the other brokers some moments before the topics. Only a
# partition that is not there for about three seconds is gone.
GONE_LOOKS = 12
GONE_PAUSE_SECONDS = 0.25
# Partitions looked into for the size of their records; those with the largest backlogs.
SAMPLED_PARTITIONS_MAX = 16
# A batch whose records grow is bisected so many times, by looks into so many partitions.
GROWTH_LOOKS = 8
GROWTH_PARTITIONS_MAX = 4
# What an offset is taken for if none of their records can be read just now: a leader is away, the
# fetch was throttled, or a read of tiered storage takes long. More than most records have.
UNKNOWN_OFFSET_BYTES = 16 << 10


class StreamCluster(Cluster, Protocol):
    """The requests of a stream beyond those of planning."""

    def topic_ids(self, topics: frozenset[str]) -> dict[str, str]:
        """The ids of those topics that have one."""

    def bytes_per_offset(self, partition: TopicPartition, offset: int) -> float | None:
        """From a look at the batches there; None if there is nothing to see."""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        """Commits offsets of a group without members."""


class Limit(NamedTuple):
    """What a trigger may take at most; without either bound, everything there is."""

    offsets: int | None = None
    bytes: int | None = None
    everything: bool = False  # set by the trigger (Once), which overrides the options


class StreamTracker:
    """The position of one query run; all methods are called by the one thread of the driver."""

    def __init__(
        self,
        cluster: StreamCluster,
        options: SourceOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._report = LossReport(options.on_data_loss)
        self._clock = clock
        self._initial: StreamOffset | None = None
        self._freezes = False
        self._ends: Offsets | None = None  # as of the last look
        self._latest: Offsets = {}
        self._known_gone: set[TopicPartition] = set()
        self._unwanted: set[TopicPartition] = set()  # were looked at in this run
        self._leaving: set[TopicPartition] = set()
        self._last_batch_at: float | None = None
        self._committed: Offsets | None = None
        self._no_commits_before = 0.0

    # --- the beginning -----------------------------------------------------------------------

    def initial(self) -> StreamOffset:
        """The start of a new query, the same for every call in one run."""
        if self._initial is None:
            options = self._options
            position = options.starting or Position("latest", "startingOffsets")
            partitions = self._cluster.partitions(options.subscription)
            start = resolve(self._cluster, position, partitions, options.client.group_id)
            self._initial = StreamOffset(start, fresh=True, topic_ids=self._topic_ids(start))
            if position.kind == "committed":
                # A query that dies before its first journal entry starts at the same place again.
                self._commit(start)
        return self._initial

    def freeze(self) -> None:
        """Trigger.AvailableNow: the stream ends at what the next look finds. Not looked for here,
        as only then it is known what the query has read before, and so what is lost."""
        self._freezes = True
        self._ends = None

    # --- the next batch ------------------------------------------------------------------------

    def next_end(self, start: StreamOffset, limit: Limit) -> StreamOffset:
        """The end of the next batch; `start` itself when there is to be none now."""
        if not start.fresh:
            self._commit(start.offsets)
        self._find_leaving(start.offsets)
        staying = {tp: at for tp, at in start.offsets.items() if tp not in self._leaving}
        latest, gone = self._look_up_latest(staying)
        self._latest = latest
        ids = self._topic_ids(latest, start.topic_ids)
        recreated = _recreated(start.topic_ids, ids)
        begin = self._with_new_partitions(staying, latest)
        if recreated:
            again = [tp for tp in begin if tp.topic in recreated]
            first = all_at(self._cluster, again, EARLIEST)
            last = all_at(self._cluster, first, LATEST)
            # What the new topic does not have is forgotten: if it gets such a partition later,
            # that one is read from its beginning. A frozen end is one of the old topic.
            begin = _replaced(begin, recreated, {tp: first[tp] for tp in last})
            latest = self._latest = _replaced(latest, recreated, last)
            if self._ends is not None:
                self._ends = _replaced(self._ends, recreated, last)
        self._check_not_back(begin, latest)
        ends = self._limited(begin, latest, limit)
        here = {tp: offset for tp, offset in start.offsets.items() if tp in latest}
        # A batch without rows takes out of the journal what was reported as lost.
        if ends is None or (ends == here and not recreated and not gone):
            # Spark compares the text. Of a fresh start only the mark goes: the first batch is run
            # in any case, and an empty one needs no start in the journal.
            return start._replace(fresh=False)
        self._last_batch_at = self._clock()
        return StreamOffset(ends, start=start.offsets if start.fresh else None, topic_ids=ids)

    def latest(self) -> Offsets:
        """The ends of all partitions as of the last look-up, for progress reports."""
        return self._latest

    def _wanted(self, offsets: Offsets) -> Offsets:
        wants = self._options.subscription.wants
        return {tp: offset for tp, offset in offsets.items() if wants(tp)}

    def _find_leaving(self, start: Offsets) -> None:
        """Looks once a run at what is not subscribed to any more: it leaves if it was read to its
        end, is gone or may not be seen. Else its position stays, for the case that it comes back,
        unless losses are tolerated."""
        unwanted = set(start) - self._wanted(start).keys() - self._unwanted
        if not unwanted:
            return
        self._unwanted |= unwanted
        ends = self._ends_of_unwanted(unwanted)
        left = {tp: start[tp] for tp in unwanted if ends.get(tp, 0) > start[tp]}
        if self._report.fails:
            self._leaving |= unwanted - left.keys()
        else:
            self._leaving |= unwanted
        if left:
            logger.warning(
                "records of partitions that are not subscribed to any more are not read%s",
                _positions(left),
            )

    def _ends_of_unwanted(self, unwanted: Collection[TopicPartition]) -> Offsets:
        """Without those of topics that are gone, or that this user may not see any more."""
        found: Offsets = {}
        for topic in sorted({tp.topic for tp in unwanted}):
            try:
                some = [tp for tp in unwanted if tp.topic == topic]
                found |= all_at(self._cluster, some, LATEST)
            except ConnectorError as error:
                if error.condition != errors.NOT_AUTHORIZED:
                    raise
        return found

    def _present_partitions(self, known: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        try:
            return set(self._cluster.partitions(self._options.subscription))
        except ConnectorError as error:
            if error.condition != errors.UNKNOWN_TOPIC or not known:
                raise
            # One topic of several is gone; those that are left are read on.
            there = set(all_at(self._cluster, known, LATEST))
            if there == known.keys():
                # Of the missing one nothing was read; it may be new and not there yet.
                self._report.lost(errors.UNKNOWN_TOPIC, error.sentence)
            return there

    def _look_up_latest(self, start: Offsets) -> tuple[Offsets, set[TopicPartition]]:
        """The end of every partition, and those of the wanted ones that are gone, which are
        reported as lost. The position of what is not subscribed to any more stays."""
        wanted = self._wanted(start)
        if self._ends is None or not self._freezes:
            self._ends = self._looked_again(wanted, lambda: self._fetch_latest(wanted))
        gone = {tp: offset for tp, offset in wanted.items() if tp not in self._ends}
        self._report_gone(gone, gone)
        unwanted = {tp: offset for tp, offset in start.items() if tp not in wanted}
        return unwanted | self._ends, set(gone)

    def _looked_again(
        self, expected: Collection[TopicPartition], look: Callable[[], Offsets]
    ) -> Offsets:
        """Return what `look` finds, after more looks while a partition that is expected, and was
        not reported as gone, is not among it."""
        found = look()
        for _ in range(GONE_LOOKS):
            if all(tp in found or tp in self._known_gone for tp in expected):
                break
            time.sleep(GONE_PAUSE_SECONDS)
            found = look()
        return found

    def _fetch_latest(self, start: Offsets) -> Offsets:
        there = self._present_partitions(start)
        found = all_at(self._cluster, there, LATEST)
        for _ in range(self._options.lookup_retries):
            # A broker that has just become leader may return an older end (KAFKA-7703).
            if all(found.get(tp, offset) >= offset for tp, offset in start.items()):
                break
            time.sleep(self._options.lookup_retry_interval_ms / 1000)
            found |= all_at(self._cluster, there, LATEST)
        return found

    def _with_new_partitions(self, start: Offsets, latest: Offsets) -> Offsets:
        new = [tp for tp in latest if tp not in start]
        if not new:
            return start
        logger.info("new partitions are read from their beginning: %s", describe_all(new))
        # One that vanished within these milliseconds has nothing to be read.
        return start | {tp: latest[tp] for tp in new} | all_at(self._cluster, new, EARLIEST)

    def _check_not_back(self, begin: Offsets, latest: Offsets) -> None:
        """Raises for an end below the position before Spark notes it in the journal, from which no
        restart would remove it. An end may lag for a while, as that of committed records does."""
        if self._report.fails:
            for tp in sorted(latest):
                if tp in begin and latest[tp] < begin[tp]:
                    self._report_back(tp, begin[tp], latest[tp])

    def _report_back(self, tp: TopicPartition, position: int, end: int) -> None:
        self._report.lost(
            errors.DATA_LOSS_OFFSET_CHANGED,
            f"The end of {describe(tp)} went back from offset {position} to {end}",
        )

    def _limited(self, begin: Offsets, latest: Offsets, limit: Limit) -> Offsets | None:
        """As far as the limits let the batch go; None to wait for more."""
        if limit.everything:
            return latest
        waiting = backlog(begin, latest)
        total = sum(waiting.values())
        minimum = self._options.offsets_min_per_trigger
        if minimum is not None and not self._freezes and total < minimum:
            waited_ms = (
                (self._clock() - self._last_batch_at) * 1000
                if self._last_batch_at is not None
                else float("inf")  # the first batch is not held back, as in the JVM connector
            )
            if waited_ms < self._options.trigger_delay_max_ms:
                return None
        allowed = (limit.offsets, self._in_offsets(begin, waiting, limit.bytes))
        bounds = [bound for bound in allowed if bound is not None]
        if not bounds:
            return latest
        taken = min(bounds)
        if limit.bytes is not None:
            taken = self._with_room_for_growth(begin, latest, taken, limit.bytes)
        return limit_offsets(begin, latest, taken)

    def _in_offsets(self, begin: Offsets, waiting: Offsets, bytes_max: int | None) -> int | None:
        """About how many offsets make so many bytes, by a look at where reading continues."""
        if bytes_max is None:
            return None
        biggest = sorted((tp for tp in waiting if waiting[tp]), key=lambda tp: -waiting[tp])
        places = {tp: begin[tp] for tp in biggest[:SAMPLED_PARTITIONS_MAX]}
        average = self._average_bytes(places, waiting)
        if average is None:
            # Retention may have deleted what is at these offsets.
            first = all_at(self._cluster, places, EARLIEST)
            later = {tp: offset for tp, offset in first.items() if offset > places[tp]}
            average = self._average_bytes(later, waiting)
        return max(1, int(bytes_max / (average or UNKNOWN_OFFSET_BYTES)))

    def _with_room_for_growth(
        self, begin: Offsets, latest: Offsets, offsets_max: int, bytes_max: int
    ) -> int:
        """`offsets_max`, or less if the records at the end of such a batch are so much larger than
        those at its beginning that it would have more bytes."""
        waiting = backlog(begin, latest)
        high = min(offsets_max, sum(waiting.values()))
        if high <= 1 or self._bytes_of(begin, latest, high) <= bytes_max:
            return offsets_max
        low = 1
        for _ in range(GROWTH_LOOKS):
            middle = (low + high) // 2
            if middle == low:
                break
            if self._bytes_of(begin, latest, middle) <= bytes_max:
                low = middle
            else:
                high = middle
        return low

    def _bytes_of(self, begin: Offsets, latest: Offsets, offsets_max: int) -> float:
        """Of a batch of so many offsets, by looks at three places of its biggest ranges; where
        records grow, it is not less than what there is."""
        ends = limit_offsets(begin, latest, offsets_max)
        sizes = {tp: ends[tp] - begin.get(tp, ends[tp]) for tp in ends}
        biggest = sorted((tp for tp in sizes if sizes[tp] > 0), key=lambda tp: -sizes[tp])
        seen = estimated = 0.0
        for tp in biggest[:GROWTH_PARTITIONS_MAX]:
            places = (begin[tp], begin[tp] + sizes[tp] // 2, ends[tp] - 1)
            found = [self._cluster.bytes_per_offset(tp, place) or 0.0 for place in places]
            estimated += sizes[tp] * (max(found[:2]) + max(found[1:])) / 2
            seen += sizes[tp]
        return estimated * sum(sizes.values()) / seen if seen else 0.0

    def _average_bytes(self, places: Offsets, waiting: Offsets) -> float | None:
        """Of an offset, by the records at these places; None if none could be read."""
        weighted = seen = 0.0
        for tp, offset in places.items():
            size = self._cluster.bytes_per_offset(tp, offset)
            if size is not None:
                weighted += size * waiting[tp]
                seen += waiting[tp]
        return weighted / seen if weighted else None

    # --- planning ------------------------------------------------------------------------------

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """What a batch reads, after the checks for lost records; the same again for a replay."""
        begin = start.offsets
        replayed = False
        if start.fresh:
            # A journaled first batch was planned with its own start, whatever is fresh now; one
            # without that mark was empty, or comes from the JVM connector.
            begin = begin if end.start is None else end.start
            replayed = end.start is None
        # What is not subscribed to any more has nothing to read, but for a batch that was planned
        # before.
        wanted = self._wanted(end.offsets)
        kept = {tp for tp in end.offsets if tp in wanted or end.offsets[tp] != begin.get(tp)}
        earliest = self._looked_again(kept, lambda: all_at(self._cluster, kept, EARLIEST))
        # None of them unless the batch is one that is repeated after a restart.
        replaced = _recreated(end.topic_ids, self._topic_ids({tp: end.offsets[tp] for tp in kept}))
        self._report_replaced(begin, end, replaced)
        expected = kept | self._wanted(begin).keys()
        self._report_gone({tp for tp in expected if tp not in earliest}, begin)
        found: list[OffsetRange] = []
        for tp in sorted(kept):
            if tp not in earliest or tp.topic in replaced:
                continue
            first = self._begin_of(tp, begin, start, end, earliest[tp])
            last = end.offsets[tp]
            if first > last:
                if not replayed:
                    self._report_back(tp, first, last)
                continue
            if first < earliest[tp] and first < last:
                self._report.lost(
                    errors.DATA_LOSS_START_RESET,
                    f"{describe(tp)} was to be read from offset {first}, but begins at "
                    f"{earliest[tp]} now: {min(earliest[tp], last) - first} offsets are gone",
                )
                first = earliest[tp]
            if first < last:
                found.append(OffsetRange(tp, first, last, (end.topic_ids or {}).get(tp.topic)))
        return found

    def _begin_of(
        self,
        tp: TopicPartition,
        begin: Offsets,
        start: StreamOffset,
        end: StreamOffset,
        earliest: int,
    ) -> int:
        if tp.topic in _recreated(start.topic_ids, end.topic_ids):
            old_id, new_id = ((ids or {})[tp.topic] for ids in (start.topic_ids, end.topic_ids))
            position = f" at offset {begin[tp]}" if tp in begin else ""
            self._report.lost(
                errors.DATA_LOSS_TOPIC_RECREATED,
                f"The topic {tp.topic} was deleted and created again (id {old_id}, now {new_id}) "
                f"while the query was{position} of {describe(tp)}; the new topic is read from "
                f"offset {earliest} on",
            )
            return earliest
        if tp in begin:
            return begin[tp]
        if earliest > 0:
            self._report.lost(
                errors.DATA_LOSS_ADDED_PARTITION,
                f"The new partition {describe(tp)} begins at offset {earliest}, not at 0",
            )
        return earliest

    def _report_gone(self, all_gone: Collection[TopicPartition], begin: Offsets) -> None:
        gone = set(all_gone) - self._known_gone  # one report a run, not one a batch
        self._known_gone = set(all_gone)
        if gone:
            self._report.lost(
                errors.DATA_LOSS_PARTITIONS_DELETED,
                f"Partitions are not there any more: {describe_all(gone)}"
                f"{_positions({tp: begin[tp] for tp in gone if tp in begin})}",
            )

    def _topic_ids(
        self, offsets: Offsets, known: Mapping[str, str] | None = None
    ) -> dict[str, str] | None:
        """The ids of the topics of these offsets; those known where a broker returns none."""
        if not self._options.track_topic_ids:
            return None
        topics = _topics(offsets)
        kept = {topic: known[topic] for topic in topics if topic in known} if known else {}
        return kept | self._cluster.topic_ids(topics) or None

    def _report_replaced(self, begin: Offsets, end: StreamOffset, replaced: set[str]) -> None:
        """What a repeated batch was planned to read is gone; the next batch reads the new topic."""
        for tp in sorted(end.offsets):
            if tp.topic in replaced:
                first = begin.get(tp, 0)
                self._report.lost(
                    errors.DATA_LOSS_TOPIC_RECREATED,
                    f"Offsets {first} to {end.offsets[tp]} of {describe(tp)} could not be read: "
                    "the topic was deleted and created again after the batch was planned",
                )

    # --- the group -----------------------------------------------------------------------------

    def _commit(self, offsets: Offsets) -> None:
        """Shows the position in the group; a failure is a warning, never more."""
        group_id = self._options.client.group_id
        offsets = self._wanted(offsets)
        if not self._options.commit_offsets or group_id is None:
            return
        if not offsets or offsets == self._committed or self._clock() < self._no_commits_before:
            return
        try:
            self._cluster.commit(group_id, offsets, COMMIT_TIMEOUT_MS)
        except ConnectorError as error:
            logger.warning("the position could not be shown in the group: %s", error)
            self._no_commits_before = self._clock() + COMMIT_PAUSE_SECONDS
        else:
            self._committed = dict(offsets)

    def finished(self, end: StreamOffset) -> None:
        """Spark has completed everything before `end`."""
        self._commit(end.offsets)


def _topics(offsets: Offsets) -> frozenset[str]:
    return frozenset(tp.topic for tp in offsets)


def _positions(gone: Offsets, limit: int = 10) -> str:
    """Up to which offsets partitions were read, as the end of a sentence."""
    if not gone:
        return ""
    shown = [f"{describe(tp)} up to offset {gone[tp]}" for tp in sorted(gone)[:limit]]
    more = f" and {len(gone) - limit} more" if len(gone) > limit else ""
    return f"; read were {', '.join(shown)}{more}"


def _replaced(offsets: Offsets, topics: Collection[str], of_topics: Offsets) -> Offsets:
    """The offsets, with these of some topics."""
    return {tp: offset for tp, offset in offsets.items() if tp.topic not in topics} | of_topics


def _recreated(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> set[str]:
    """The topics that have another id than before."""
    if not before or not now:
        return set()
    return {topic for topic, topic_id in now.items() if before.get(topic, topic_id) != topic_id}
