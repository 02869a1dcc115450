"""An hour of rates and lags for the charts of the console, and its other state of the cluster.

One task asks the brokers for groups, offsets and disks, so that the number of pages that are open
does not matter to them. It does so often while a page is open, else seldom.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.cluster.cluster_problems import adding_of
from ottla.broker.groups.lag import LogEndHistory
from ottla.broker.handlers.admin.describe_configs import BROKER_REMOTE, BROKER_STATE
from ottla.broker.metrics.statistics import Traffic
from ottla.broker.observability.console.cluster_client import (
    LATEST,
    NoResponse,
    list_offsets,
)
from ottla.broker.observability.console.groups_of_cluster import (
    GroupRow,
    committed_offsets,
    list_groups,
)
from ottla.broker.observability.console.settings_views import broker_texts
from ottla.broker.runtime.tasks import spawn, stop
from ottla.broker.security.authorization.acl_types import Operation
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.cluster_problems import Adding
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient, ConsoleParts


logger = logging.getLogger("ottla.console")

TICK_SECONDS = 1.0
INTERVAL_MS = 5_000
# While no page was open for a minute.
QUIET_INTERVAL_MS = 30_000
QUIET_AFTER_MS = 60_000
# States of a group, as ListGroups returns them, in which nobody reads.
WITHOUT_MEMBERS = ("Empty", "Dead")
# A minute of the pace of a group.
PACE_SAMPLES = 12
# The time that a page waits for a sample.
FRESH_SECONDS = 5.0
# An hour. A point of the traffic is five numbers, one of a group is two.
MAX_POINTS = 720
# With the points above about 15 MB at worst.
MAX_GROUPS = 200
MAX_TOPICS = 100
# Tiered topics: four numbers a point, 5 MB.
MAX_REMOTE_TOPICS = 20
# Partitions whose end offsets are requested in one sample. Those that groups read keep a history of
# 20 kB at the most, 40 MB together.
MAX_PARTITIONS = 2000


class Disks(NamedTuple):
    """The log directories of one broker; None where an older broker does not say."""

    total_bytes: int | None
    usable_bytes: int | None
    offline: list[str]
    problem: str  # why there is nothing to show


class Lag(NamedTuple):
    """Of one partition of one group, at the last sample."""

    committed: int
    end: int | None
    records: int | None
    seconds: float | None
    #: Whether `seconds` is a lower bound: the record is older than the first sample.
    is_at_least: bool = False


class Pace(NamedTuple):
    """Of one group in the last minute: records a second that it committed and that were appended,
    and in how many seconds it has no lag if this goes on; None if never."""

    committed: float
    appended: float
    catch_up_seconds: float | None


class _Sums(NamedTuple):
    """Of the partitions of a group whose end is known, at a sample."""

    time_ms: int
    committed: int
    ends: int
    partitions: frozenset[TopicPartition]


class History:
    """Samples every few seconds while the console is on. Loop only."""

    def __init__(self, parts: ConsoleParts, viewer: Viewer) -> None:
        """`viewer` is the principal of the console, in whose name the cluster is asked."""
        self._parts = parts
        self._client: ClusterClient = parts.client
        self._viewer = viewer
        #: The groups of the cluster that the viewer may describe, by id.
        self.groups: dict[str, GroupRow] = {}
        #: Whether all coordinators have listed theirs.
        self.has_all_groups = False
        self.disks: dict[int, Disks] = {}
        #: By broker, as /statusz has them; of brokers of Ottla with an HTTP port.
        self.states: dict[int, dict[str, Any]] = {}
        self.problems: list[str] = []
        self.started_ms = parts.now_ms()
        self.traffic = ClusterTraffic(MAX_POINTS)
        self.remote = RemoteRates(MAX_POINTS, MAX_REMOTE_TOPICS)
        self._adding: Adding | None = None
        self._group_lags: dict[str, deque[tuple[int, int | None]]] = {}
        self._lags: dict[str, dict[TopicPartition, Lag]] = {}
        self._sums: dict[str, deque[_Sums]] = {}
        self._ends: dict[TopicPartition, LogEndHistory] = {}
        self._records: deque[tuple[int, float]] = deque(maxlen=MAX_POINTS)
        self._topic_rates: dict[str, deque[tuple[int, float]]] = {}
        self._last_ends: tuple[int, dict[TopicPartition, int]] = (0, {})
        self._viewed: dict[str, None] = {}  # groups on pages, the latest last
        self._asked_ms = self._sampled_ms = 0
        self._sampling: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = spawn(self._run(), name="console-history")

    async def stop(self) -> None:
        tasks = [each for each in (self._task, self._sampling) if each is not None]
        self._task = self._sampling = None
        await stop(*tasks)

    async def fresh(self, groups: Iterable[str] = ()) -> None:
        """Return when there is a sample of the last seconds with each broker that is registered
        now, or when that takes too long; `groups` are those on the page, which are preferred."""
        self._asked_ms = self._parts.now_ms()
        for name in groups:
            self._viewed.pop(name, None)
            self._viewed[name] = None
        while len(self._viewed) > MAX_GROUPS:
            del self._viewed[next(iter(self._viewed))]
        # A broker that does not respond may make it late; the page shows what there is then.
        with suppress(TimeoutError):
            async with asyncio.timeout(FRESH_SECONDS):
                if self._asked_ms - self._sampled_ms > 2 * INTERVAL_MS:
                    await self.sample()
                for _ in range(2):  # a sample that runs may have begun before the registration
                    if self._knows_all_brokers():
                        break
                    await self.sample()

    def _knows_all_brokers(self) -> bool:
        """Whether each broker was asked, so that the page shows none as one that did not respond
        because it was registered after the last sample."""
        if not self._viewer.may_on_cluster(Operation.DESCRIBE):
            return True
        return all(each in self.disks for each in self._client.brokers())

    async def reassignments(self) -> Adding | None:
        """The reassignments in progress, the same object while they are the same; None where the
        viewer may not see them, or the controller does not respond."""
        if not self._viewer.may_on_cluster(Operation.DESCRIBE):
            return None
        request = ListPartitionReassignmentsRequest(topics=None)
        try:
            response = await self._client.ask(
                self._viewer,
                self._client.controller(),
                request,
                ListPartitionReassignmentsResponse,
            )
        except (KafkaError, NoResponse):
            found = None
        else:
            found = None if response.error_code else adding_of(response)
        if found != self._adding:
            self._adding = found
        return self._adding

    async def find_group(self, group_id: str) -> GroupRow | None:
        """A group that may be newer than the last sample."""
        for _ in range(2):  # the first sample may have begun before the group
            if group_id in self.groups:
                break
            await self.sample()
        return self.groups.get(group_id)

    async def _run(self) -> None:
        while True:
            now_ms = self._parts.now_ms()
            is_quiet = now_ms - self._asked_ms > QUIET_AFTER_MS
            if now_ms - self._sampled_ms >= (QUIET_INTERVAL_MS if is_quiet else INTERVAL_MS):
                await self.sample()
            await asyncio.sleep(TICK_SECONDS)

    async def sample(self) -> None:
        """One point of everything; callers at the same time share it."""
        if self._sampling is None or self._sampling.done():
            self._sampling = spawn(self._sample(), name="console-sample")
        await asyncio.shield(self._sampling)

    async def _sample(self) -> None:
        now_ms = self._parts.now_ms()
        problems = [*await self._ask_disks(), *await self._ask_states()]
        self.traffic.add(self._parts.now_ms(), self.states)
        await self._ask_remote()
        listed, more = await list_groups(self._client, self._viewer)
        self.groups = listed
        problems += more
        self.has_all_groups = not more and self._have_coordinators()
        if self.has_all_groups:
            self._forget_groups()
        chosen = self._chosen()
        committed, more = await committed_offsets(
            self._client, self._viewer, [listed[name] for name in chosen]
        )
        problems += more
        ends, more = await list_offsets(
            self._client, self._viewer, self._measured(committed), LATEST
        )
        problems += more
        self._note_ends(now_ms, ends, {each for offsets in committed.values() for each in offsets})
        self._note_lags(now_ms, committed, ends)
        self.problems = list(dict.fromkeys(problems))
        self._sampled_ms = max(1, now_ms)

    async def _ask_disks(self) -> list[str]:
        """An empty list of topics: the directories alone."""
        if not self._viewer.may_on_cluster(Operation.DESCRIBE):
            return []
        asked = dict.fromkeys(self._client.brokers(), DescribeLogDirsRequest([]))
        gathered = await self._client.ask_each(self._viewer, asked, DescribeLogDirsResponse)
        silent = {text.split(" ")[1].rstrip(":"): text for text in gathered.problems}
        disks = {}
        for broker_id in asked:
            response = gathered.responses.get(broker_id)
            if response is None:
                problem = silent.get(str(broker_id), f"Broker {broker_id} did not respond.")
                disks[broker_id] = Disks(None, None, [], problem)
            else:
                disks[broker_id] = _disks(response)
        self.disks = disks
        return gathered.problems

    async def _ask_states(self) -> list[str]:
        """The states that brokers of Ottla report, and who refused; silent brokers are known."""
        own = self._client.broker_id
        states = {own: self._parts.state()}
        problems: list[str] = []
        if self._viewer.may_on_cluster(Operation.DESCRIBE_CONFIGS):
            others = [
                each
                for each, disks in self.disks.items()
                if each != own and not disks.problem and await self._client.is_ottla(each)
            ]
            found, problems = await broker_texts(self._client, self._viewer, others, BROKER_STATE)
            states |= found
        self.states = states
        return problems

    async def _ask_remote(self) -> None:
        """Sample the reports about tiered topics, once a page has shown one."""
        self.remote.keep(self._client.metadata.snapshot.topics)
        if not self.remote.is_watching or not self._viewer.may_on_cluster(
            Operation.DESCRIBE_CONFIGS
        ):
            return
        # A broker that does not respond is known already.
        asked = [
            each
            for each in self._client.brokers()
            if each not in self.disks or not self.disks[each].problem
        ]
        reports, _ = await broker_texts(self._client, self._viewer, asked, BROKER_REMOTE)
        self.remote.add(self._parts.now_ms(), reports)

    def _chosen(self) -> list[str]:
        """The groups to ask for: those on pages, those with lag, others."""
        known = sorted(self._group_lags, key=lambda name: -(self.lag(name) or 0))
        order = dict.fromkeys([*reversed(self._viewed), *known, *self.groups])
        return [name for name in order if name in self.groups][:MAX_GROUPS]

    def _have_coordinators(self) -> bool:
        """Whether each group has a coordinator: the leader of its partition."""
        snapshot = self._client.metadata.snapshot
        offsets = snapshot.topics.get(GROUP_METADATA_TOPIC)
        return offsets is None or all(
            each.leader in snapshot.brokers for each in offsets.partitions.values()
        )

    def _forget_groups(self) -> None:
        for name in [each for each in self._group_lags if each not in self.groups]:
            del self._group_lags[name]
        for name in [each for each in self._lags if each not in self.groups]:
            del self._lags[name]
            self._sums.pop(name, None)

    def _measured(self, committed: dict[str, dict[TopicPartition, int]]) -> list[TopicPartition]:
        """Partitions of the groups, and all of the cluster if there are not too many."""
        wanted = dict.fromkeys(each for offsets in committed.values() for each in offsets)
        topics = self._client.metadata.snapshot.topics
        if sum(len(topic.partitions) for topic in topics.values()) <= MAX_PARTITIONS:
            for name, topic in topics.items():
                wanted.update(
                    dict.fromkeys(TopicPartition(name, each) for each in topic.partitions)
                )
        return list(wanted)[:MAX_PARTITIONS]

    def _note_ends(
        self, now_ms: int, ends: dict[TopicPartition, int], committed: set[TopicPartition]
    ) -> None:
        for partition in committed & ends.keys():
            end = ends[partition]
            history = self._ends.get(partition)
            if history is None:
                history = self._ends[partition] = LogEndHistory()
            history.add_sample(end, now_ms)
        if len(self._ends) > MAX_PARTITIONS:
            self._ends = {each: self._ends[each] for each in committed & ends.keys()}
        before_ms, before = self._last_ends
        self._last_ends = (now_ms, ends)
        seconds = (now_ms - before_ms) / 1000
        if not before or seconds <= 0:
            return
        rates: dict[str, float] = {}
        for partition, end in ends.items():
            if partition in before:
                topic = partition.topic
                added = max(0, end - before[partition])
                rates[topic] = rates.get(topic, 0.0) + added / seconds
        self._records.append((now_ms, sum(rates.values())))
        self._note_topics(now_ms, rates)

    def _note_topics(self, now_ms: int, rates: dict[str, float]) -> None:
        known = self._topic_rates
        busiest = sorted(rates, key=lambda name: (name not in known, -rates[name]))
        self._topic_rates = {
            name: known.get(name) or deque(maxlen=MAX_POINTS) for name in busiest[:MAX_TOPICS]
        }
        for name, points in self._topic_rates.items():
            points.append((now_ms, rates[name]))

    def _note_lags(
        self,
        now_ms: int,
        committed: dict[str, dict[TopicPartition, int]],
        ends: dict[TopicPartition, int],
    ) -> None:
        for name, offsets in committed.items():
            rows = self._lags[name] = {
                partition: self._lag(now_ms, partition, offset, ends.get(partition))
                for partition, offset in offsets.items()
            }
            if any(row.records is not None for row in rows.values()):
                self._group_lags.setdefault(name, deque(maxlen=MAX_POINTS))
                self._note_sums(name, now_ms, rows)
        for name, points in self._group_lags.items():
            counts = [row.records for row in self._lags.get(name, {}).values()]
            known = [each for each in counts if each is not None]
            # A sum of a part would look like a lag that fell.
            is_whole = name in committed and 0 < len(known) == len(counts)
            points.append((now_ms, sum(known) if is_whole else None))
        while len(self._group_lags) > MAX_GROUPS:
            # Those of this sample are the last to go.
            del self._group_lags[next(iter(self._group_lags))]
        for name in [each for each in self._lags if each not in committed]:
            del self._lags[name]
            self._sums.pop(name, None)

    def forget_pace(self, group_id: str) -> None:
        """Offsets were set, which is no consumption: the pace begins with the next sample."""
        self._sums.pop(group_id, None)

    def _note_sums(self, name: str, now_ms: int, rows: Mapping[TopicPartition, Lag]) -> None:
        group = self.groups.get(name)
        if group is not None and group.state in WITHOUT_MEMBERS:
            # Whatever moves its offsets now does not consume.
            self.forget_pace(name)
            return
        found = [row for row in rows.values() if row.end is not None]
        sums = _Sums(
            now_ms, sum(row.committed for row in found), sum(row.end or 0 for row in found),
            frozenset(partition for partition, row in rows.items() if row.end is not None),
        )  # fmt: skip
        kept = self._sums.setdefault(name, deque(maxlen=PACE_SAMPLES))
        if kept and (kept[-1].partitions != sums.partitions or kept[-1].committed > sums.committed):
            kept.clear()  # other partitions, or an earlier offset: nothing to compare with
        elif kept:
            # The same set once: 2000 partitions are 100 kB.
            sums = sums._replace(partitions=kept[-1].partitions)
        kept.append(sums)

    def pace(self, group_id: str) -> Pace | None:
        """The rate at which a group reads, None without members, and before there are two samples
        with them to compare."""
        kept = self._sums.get(group_id)
        if kept is None or len(kept) < 2:
            return None
        first, last = kept[0], kept[-1]
        seconds = (last.time_ms - first.time_ms) / 1000
        if seconds <= 0:
            return None
        committed = (last.committed - first.committed) / seconds
        appended = max(0, last.ends - first.ends) / seconds
        lag = max(0, last.ends - last.committed)
        gain = committed - appended
        catch_up = 0.0 if not lag else lag / gain if gain > 0 else None
        return Pace(committed, appended, catch_up)

    def _lag(self, now_ms: int, partition: TopicPartition, offset: int, end: int | None) -> Lag:
        if end is None:
            return Lag(offset, None, None, None)
        records = max(0, end - offset)
        if not records:
            return Lag(offset, end, 0, 0.0)
        ends = self._ends[partition]
        seconds = max(0, now_ms - ends.written_ms(offset)) / 1000
        return Lag(offset, end, records, seconds, is_at_least=not ends.reaches(offset))

    def faults(self, broker_id: int) -> list[dict[str, Any]]:
        """The faults that a broker reports: `problem` and `fix`, and more."""
        if broker_id == self._client.broker_id:
            own: list[dict[str, Any]] = self._parts.state()["faults"]
            return own
        return list(self.states.get(broker_id, {}).get("faults", ()))

    def worker(self, broker_id: int) -> tuple[str, int] | None:
        """Machine and number of a broker that is one of several workers."""
        own = broker_id == self._client.broker_id
        state = self._parts.state() if own else self.states.get(broker_id, {})
        return (str(state["machine"]), int(state["worker"])) if "worker" in state else None

    def lag_points(self, group_id: str) -> list[tuple[int, int | None]]:
        """(time in ms, records) of one group, oldest first; None where a part was not known."""
        return list(self._group_lags.get(group_id, ()))

    def lag(self, group_id: str) -> int | None:
        """The records that a group has not committed, at the last sample, as far as they are known;
        None if not measured."""
        known = [row.records for row in self.lags(group_id).values() if row.records is not None]
        return sum(known) if known else None

    def lag_seconds(self, group_id: str) -> float | None:
        """The age of the oldest record that the group has not committed, at the last sample."""
        ages = [row.seconds for row in self.lags(group_id).values() if row.seconds is not None]
        return max(ages, default=None)

    def is_at_least(self, group_id: str) -> bool:
        """Whether `lag_seconds` is a lower bound."""
        oldest = self.lag_seconds(group_id)
        return any(
            row.is_at_least and row.seconds == oldest for row in self.lags(group_id).values()
        )

    def lags(self, group_id: str) -> dict[TopicPartition, Lag]:
        """The offsets of one group at the last sample; empty for a group that was not asked."""
        return self._lags.get(group_id, {})

    def is_sampled(self, group_id: str) -> bool:
        return group_id in self._lags

    def cluster_rate(self) -> list[tuple[int, float]]:
        """(time in ms, records appended a second) of the cluster; of its partitions that are
        measured, if they are too many."""
        return list(self._records)

    def topic_rate(self, topic: str) -> list[tuple[int, float]]:
        """The same of one topic; empty for one that is not measured."""
        return list(self._topic_rates.get(topic, ()))

    def remote_rates(self, topic: str) -> list[dict[str, float]]:
        """Bytes and errors a second of one topic in remote storage, oldest first. They begin with
        the first page that shows the topic."""
        self._asked_ms = self._parts.now_ms()
        return self.remote.watch(topic)


def _disks(response: DescribeLogDirsResponse) -> Disks:
    """Directories on one file system report the same numbers, which count once."""
    sizes = {
        (row.total_bytes, row.usable_bytes) for row in response.results if row.total_bytes >= 0
    }
    offline = [row.log_dir for row in response.results if row.error_code]
    total = sum(each[0] for each in sizes) if sizes else None
    usable = sum(each[1] for each in sizes) if sizes else None
    return Disks(total, usable, offline, "")


_ERRORS = ("copy_errors", "read_errors", "delete_errors", "state_build_errors")
_Counts = tuple[float, float, float]


class RemotePoint(NamedTuple):
    """Rates per second of one topic, the sum of its brokers."""

    time_ms: int
    copied_bytes: float
    read_bytes: float
    errors: float


class RemoteRates:
    """Rates of copies, reads and failures in remote storage, of the `max_topics` topics whose pages
    were opened last.

    Keeps `max_points` samples. As in `ClusterTraffic`, a broker counts between two samples that
    both have it. Loop only.
    """

    def __init__(self, max_points: int, max_topics: int) -> None:
        self._max_points = max_points
        self._max_topics = max_topics
        self._points: dict[str, deque[RemotePoint]] = {}
        self._before: dict[tuple[str, int], _Counts] = {}
        self._before_ms = 0

    @property
    def is_watching(self) -> bool:
        """Whether a sample is of use: the page of a tiered topic was opened."""
        return bool(self._points)

    def watch(self, topic: str) -> list[dict[str, float]]:
        """The points of a topic, oldest first; later samples have it."""
        points = self._points.pop(topic, None)
        self._points[topic] = deque(maxlen=self._max_points) if points is None else points
        while len(self._points) > self._max_topics:
            del self._points[next(iter(self._points))]
        return [point._asdict() for point in self._points[topic]]

    def add(self, now_ms: int, reports: Mapping[int, Mapping[str, Any]]) -> None:
        """A sample: the reports of the brokers that respond (`remote_report`)."""
        seconds = (now_ms - self._before_ms) / 1000
        before, self._before = self._before, {}
        for topic, points in self._points.items():
            found = {
                (topic, broker_id): _counts(report["topics"][topic])
                for broker_id, report in reports.items()
                if topic in report["topics"]
            }
            self._before |= found
            grown = [
                [now - then for now, then in zip(found[each], before[each], strict=True)]
                for each in found.keys() & before.keys()
            ]
            # Counts that went back are those of a broker that was started again.
            rising = [counts for counts in grown if min(counts) >= 0]
            if rising and seconds > 0:
                rates = (sum(column) / seconds for column in zip(*rising, strict=True))
                points.append(RemotePoint(now_ms, *rates))
        self._before_ms = now_ms

    def keep(self, topics: Iterable[str]) -> None:
        """Forget the topics that are not in the cluster any more."""
        for topic in self._points.keys() - set(topics):
            del self._points[topic]


def _counts(report: Mapping[str, float]) -> _Counts:
    """Of one topic on one broker; a broker that leads none of it reports no counts."""
    errors = sum(report.get(name, 0) for name in _ERRORS)
    return report.get("copied_bytes", 0), report.get("read_bytes", 0), errors


class Point(NamedTuple):
    """Rates per second at a time, of that many brokers."""

    time_ms: int
    bytes_in: float
    bytes_out: float
    requests: float
    brokers: int


class ClusterTraffic:
    """Bytes and requests a second of the cluster: the sum over the brokers that report theirs.

    Keeps `max_points` samples. Each broker of Ottla reports counts since its start. It counts
    between two samples that both have it: not when it was just found, and not over a restart.
    Loop only.
    """

    def __init__(self, max_points: int) -> None:
        self._points: deque[Point] = deque(maxlen=max_points)
        self._before: dict[int, Traffic] = {}
        self._before_ms = 0

    def add(self, now_ms: int, states: Mapping[int, Mapping[str, Any]]) -> None:
        """A sample: the state of each broker that has one, by its id."""
        found = {
            broker_id: Traffic(**state["traffic"])
            for broker_id, state in states.items()
            if state.get("traffic") is not None
        }
        seconds = (now_ms - self._before_ms) / 1000
        grown = [
            [now - then for now, then in zip(found[each], self._before[each], strict=True)]
            for each in found.keys() & self._before.keys()
        ]
        # Counts that went back are those of a broker that was started again.
        rising = [counts for counts in grown if min(counts) >= 0]
        if rising and seconds > 0:
            received, sent, requests = (
                sum(column) / seconds for column in zip(*rising, strict=True)
            )
            self._points.append(Point(now_ms, received, sent, requests, len(rising)))
        self._before, self._before_ms = found, now_ms

    def points(self) -> list[dict[str, float]]:
        """Oldest first."""
        return [point._asdict() for point in self._points]

    @property
    def brokers(self) -> int:
        """Of how many brokers the last point is; 0 without one."""
        return self._points[-1].brokers if self._points else 0
