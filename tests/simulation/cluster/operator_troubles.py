"""What operators and their tools do to a cluster, without a request of the Kafka protocol.

A directory twice in `log.dirs`, an old tool that rewrites the znode of a topic, a start against an
older copy of ZooKeeper, garbage, foreign and missing files in a log directory, a partition whose
directory is removed, everything stopped at once, a login to ZooKeeper that is refused for a while.
Played with `--operator` or `--kinds`. None of it may cost a record that is on a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.controller.tree.embedded_tree import Node as Znode
from ottla.controller.tree.store import SetOp, StoreError
from ottla.protocol.records.batch import LOG_OVERHEAD, BatchHeader, read_header
from ottla.protocol.topics import TopicPartition
from ottla.storage.errors import CorruptFile
from ottla.storage.files.set_aside import SET_ASIDE_SUFFIX
from ottla.storage.producer.producer_snapshot import decode_snapshot
from tests.doubles.record_batches import iterate_batches
from tests.simulation.cluster.admin import TOPIC
from tests.simulation.cluster.disk import File
from tests.simulation.cluster.settled import settles
from tests.simulation.cluster.waiting import until
from tests.simulation.cluster.zookeeper import SESSION_TIMEOUT_SECONDS, Ensemble

if TYPE_CHECKING:
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.disk import Disk
    from tests.simulation.cluster.leader_troubles import LeaderTroubles
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

READY_SECONDS = 60
# A start that is refused is tried again every second.
REFUSED_SECONDS = 3
# What Docker waits before it kills; Kubernetes waits 30 s.
GRACE_SECONDS = 10
# Until a controller has read what changed, or a new one all of it.
NOTICED_SECONDS = 10
# Derived from the segments, or checked against them. Not the index of aborted transactions: it has
# no checksum, so that another number in it, or fewer entries, cannot be seen, here or in Kafka.
INDEXES = (".index", ".timeindex", ".snapshot")
DERIVED = (
    *INDEXES,
    *("leader-epoch-checkpoint", "recovery-point-offset-checkpoint"),
    *("log-start-offset-checkpoint", "replication-offset-checkpoint", "cleaner-offset-checkpoint"),
)
CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
# Valid in themselves, whichever log they are of.
OF_ONE_LOG = (".snapshot", ".timeindex", "leader-epoch-checkpoint")
TIME_ENTRY_BYTES = 12
# Until a broker sees that a directory is gone, the controller asks it, and a leader is elected.
ELSEWHERE_SECONDS = 40
CLEAN_FILE = ".kafka_cleanshutdown"


class OperatorTroubles:
    """One method for each; the cluster is as the operator wants it when it returns."""

    KINDS = (
        *("doubled_directory", "old_tool", "old_zookeeper", "garbage", "lost_checkpoints"),
        *("missing_segment", "all_at_once", "restored_zookeeper", "refused_login"),
        *("foreign_files", "removed_log"),
    )

    def __init__(self, world: World, admin: Admin, leaders: LeaderTroubles) -> None:
        self.world = world
        self.admin = admin
        self.leaders = leaders
        self.random = Random(f"operator troubles {world.seed}")

    async def doubled_directory(self, node: Node) -> None:
        """`log.dirs` names a directory twice. The start is refused, and nothing changes on disk."""
        await self._end(node)
        before, settings = _contents(node.disk), node.settings
        names = [*node.log_directories, self.random.choice(node.log_directories)]
        self.random.shuffle(names)
        if self.random.random() < 0.5:
            names[-1] += "/"
        node.settings = {**settings, "log.dirs": ",".join(names)}
        node.start()
        await asyncio.sleep(REFUSED_SECONDS)
        if node.ready:
            self.world.complain(f"{node.host} starts with log.dirs={','.join(names)}")
        node.kill()
        node.settings = settings
        if _contents(node.disk) != before:
            self.world.complain(f"{node.host}: a start that was refused has changed its disk")
        await self._start(node)

    async def old_tool(self, node: Node) -> None:
        """A tool from before topic ids rewrites the znode of a topic, which loses its id."""
        tree = self.world.ensemble.tree
        path = znodes.topic_path(TOPIC)
        found = tree.nodes.get(path)
        topic_id = None if found is None else json.loads(found.data).get("topic_id")
        if found is None or topic_id is None:
            return
        fields = json.loads(found.data)
        written = {"version": 1, "partitions": fields["partitions"]}
        session = tree.open_session()
        with contextlib.suppress(StoreError):
            tree.apply(session, [SetOp(path, json.dumps(written).encode())])
        tree.end_session(session)
        self.world.note(f"{path} has no topic id")
        await asyncio.sleep(self.random.uniform(0, 3))
        if self.random.random() < 0.7:
            await self.leaders.depose(node)
        if self.random.random() < 0.5:
            await self._end(node)
            await self._start(node)

        def is_back() -> bool:
            return bool(json.loads(tree.nodes[path].data).get("topic_id") == topic_id)

        if not await until(is_back, NOTICED_SECONDS + SESSION_TIMEOUT_SECONDS):
            now = json.loads(tree.nodes[path].data).get("topic_id")
            self.world.complain(f"the topic id of {TOPIC} was {topic_id} and is {now}")
        self._check_not_set_aside()

    async def old_zookeeper(self, node: Node) -> None:
        """A broker is started once against an older copy of ZooKeeper, which lacks the topic."""
        await self._end(node)
        before = _segments(node.disk)
        node.ensemble = _older(self.world, self.random.random() < 0.5)
        # It leads alone there: what clients wrote to it would be the operator's loss, as in Kafka.
        network = self.world.network
        for each in ("clients", *(each.host for each in self.world.nodes.values())):
            network.cut(node.host, each)
        await self._start(node)
        await asyncio.sleep(self.random.uniform(0, 8))
        await self._end(node)
        network.heal()
        node.ensemble = self.world.ensemble
        await self._start(node)
        self._check_kept(node, before)

    async def garbage(self, node: Node) -> None:
        """Somebody's program writes into a file that is derived from the segments."""
        await self._end(node)
        ending = self.random.choice(self._made_again(DERIVED))
        paths = sorted(path for path in _contents(node.disk) if path.endswith(ending))
        for path in self.random.sample(paths, min(len(paths), 3)):
            content = self._damaged(_contents(node.disk)[path], is_text=ending not in INDEXES)
            self.world.note(f"{node.host}: garbage in {path}")
            _write(node.disk, path, content)
        await self._start(node)

    async def foreign_files(self, node: Node) -> None:
        """Somebody has copied files of another log, or of another broker, or a part of them."""
        await self._end(node)
        ending = self.random.choice(self._made_again(OF_ONE_LOG))
        files = sorted(
            (each.host, path, content)
            for each in self.world.nodes.values()
            for path, content in _contents(each.disk).items()
            if path.endswith(ending) and content
        )
        own = [
            path
            for host, path, _ in files
            if host == node.host and f"/{TOPIC}-" in path and "-delete/" not in path
        ]
        for path in self.random.sample(own, min(len(own), 3)):
            source, other, content = self.random.choice(files)
            if ending == ".timeindex" and self.random.random() < 0.5:
                entries = len(content) // TIME_ENTRY_BYTES
                content = content[: self.random.randint(0, entries) * TIME_ENTRY_BYTES]
            if ending == ".snapshot" and _may_be_of(content, path, node.disk):
                continue
            self.world.note(f"{node.host}: {path} has the content of {other} on {source}")
            _write(node.disk, path, content)
        await self._start(node)
        self._check_derived(node)
        await self.leaders.disks.admin.elect_preferred()

    def _check_derived(self, node: Node) -> None:
        """What a broker derives from the batches of a log agrees with them."""
        server: Any = node.server
        if server is None or not node.ready:
            return
        with node.disk.checked():
            for log in server.parts.logs.logs():
                if log.topic == TOPIC and log.local_log_start_offset < log.log_end_offset:
                    self._check_derived_of(node, log)

    def _check_derived_of(self, node: Node, log: Any) -> None:
        start = log.local_log_start_offset
        headers = [read_header(bytes(each)) for each in log.batches(start)]
        last = headers[-1]
        found = log.leader_epochs.epoch_for_offset(last.base_offset)
        if found != last.partition_leader_epoch:
            self.world.complain(
                f"{node.host}: {log.name} has epoch {found} for offset {last.base_offset}, and the"
                f" batch has {last.partition_leader_epoch}"
            )
        for segment in list(log.segments):
            times = [
                each.max_timestamp
                for each in headers
                if log.segments.floor(each.base_offset) is segment
            ]
            if times and segment.newest()[0] != max(times):
                self.world.complain(
                    f"{node.host}: {segment.log.path} has the newest timestamp {max(times)}, and"
                    f" retention is told {segment.newest()[0]}"
                )
        for producer_id, entry in log.producer_state.producers.items():
            claims = [entry.transaction_first_offset, *(each.last_offset for each in entry.batches)]
            for each in headers:
                is_own = each.producer_id == producer_id
                if not is_own and any(each.base_offset <= at <= each.last_offset for at in claims):
                    self.world.complain(
                        f"{node.host}: {log.name} takes the batch at {each.base_offset} for one of"
                        f" producer {producer_id}"
                    )

    async def removed_log(self, node: Node) -> None:
        """Somebody deletes or moves the directory of a partition of a running broker.

        Another replica leads it then, and the others of the disk stay where they are.
        """
        await settles(self.world)
        if not (node.ready and self.leaders.disks.has_survivors(node)):
            return
        wanted = re.compile(f"{TOPIC}-[0-9]+")
        paths = [path for path in node.disk.names if wanted.fullmatch(path.rpartition("/")[2])]
        if not paths:
            return
        path = self.random.choice(sorted(paths))
        moved = node.disk.names.pop(path)
        self.world.note(f"{node.host}: {path} is gone")
        state = znodes.state_path(TopicPartition(TOPIC, int(path.rpartition("-")[2])))

        def is_elsewhere() -> bool:
            found = self.world.ensemble.tree.nodes.get(state)
            if found is None or not node.is_up:
                return True
            fields = json.loads(found.data)
            return fields["leader"] != node.broker_id and node.broker_id not in fields["isr"]

        if not await until(is_elsewhere, ELSEWHERE_SECONDS):
            self.world.complain(f"{node.host} has no {path}, and is in the ISR still")
        await self._end(node)
        if self.random.random() < 0.5 and path not in node.disk.names:
            node.disk.names[path] = moved
        await self._start(node)

    async def lost_checkpoints(self, node: Node) -> None:
        """The checkpoints of a broker are gone, or empty, or zeros, and it was killed."""
        node.kill()
        before = _segments(node.disk)
        for path, content in _contents(node.disk).items():
            if path.endswith(CHECKPOINTS):
                _write(node.disk, path, self.random.choice([b"", bytes(len(content)), None]))
        await self._start(node)
        self._check_kept(node, before)

    async def missing_segment(self, node: Node) -> None:
        """An operator has moved a damaged segment away, as documents advise; then a crash, after
        which the recovery point is not known."""
        node.kill()
        logs = [path for path in _segments(node.disk) if f"/{TOPIC}-" in path]
        bases = {path.rpartition("/")[0] for path in logs}
        inner = [
            path
            for folder in sorted(bases)
            for path in sorted(each for each in logs if each.startswith(f"{folder}/"))[1:-1]
        ]
        # Without its marker a transaction would be open for ever, until somebody aborts it by hand.
        inner = [path for path in inner if not _ends_transaction(_log_of(node.disk, path), path)]
        if not inner:
            await self._start(node)
            return
        chosen = self.random.choice(inner)
        stem = chosen.removesuffix(".log")
        segments = _log_of(node.disk, chosen)
        for path in _contents(node.disk):
            if path.startswith(f"{stem}.") and not path.endswith(".snapshot"):
                _write(node.disk, path, None)
        self.world.note(f"{node.host}: {chosen} is gone")
        topic, _, index = stem.split("/")[-2].rpartition("-")
        where = TopicPartition(topic, int(index))
        self.world.with_gaps.add(where)
        self.world.forgotten_producers |= {
            (where, each) for each in _last_written_in(segments, chosen)
        }
        before = _segments(node.disk)
        for path in _contents(node.disk):
            if path.endswith(CHECKPOINTS[0]):
                _write(node.disk, path, self.random.choice([b"", None]))
        await self._start(node)
        self._check_kept(node, before)
        # The broker lacks what the operator took. A replica is repaired as docs/operations.md says.
        if await self._replace_replica(node, stem.rpartition("/")[0], where):
            self.world.with_gaps.clear()
            self.world.forgotten_producers.clear()

    async def all_at_once(self, _node: Node) -> None:
        """The machine goes down: all brokers, and maybe ZooKeeper, get SIGTERM together."""
        nodes = list(self.world.nodes.values())
        sessions = [self.leaders.session(each) for each in nodes]
        stopping = asyncio.gather(*(self._stop_in_time(each) for each in nodes if each.is_up))
        if self.random.random() < 0.7:
            await asyncio.sleep(self.random.choice([0, self.random.uniform(0, 1)]))
            refuses = self.random.random() < 0.3
            for session in sessions:
                if session is not None:
                    session.cut(refuses=refuses)
        await stopping
        await asyncio.sleep(self.random.uniform(0, SESSION_TIMEOUT_SECONDS * 2))
        for session in sessions:
            if session is not None:
                session.heal()
        for each in nodes:
            if not each.is_up:
                each.start()
        await until(lambda: all(each.ready for each in nodes), READY_SECONDS)

    async def _stop_in_time(self, node: Node) -> None:
        begin = self.world.loop.time()
        await node.stop()
        seconds = self.world.loop.time() - begin
        if seconds > GRACE_SECONDS:
            self.world.complain(f"{node.host} took {seconds:.1f} s to stop")

    async def restored_zookeeper(self, _node: Node) -> None:
        """ZooKeeper is restored from a snapshot that is older than some elections.

        The operator stops everything, as an ensemble that has gone back refuses its clients.
        """
        snapshot = _older(self.world, True)
        nodes = list(self.world.nodes.values())
        for _ in range(self.random.randint(1, 3)):
            each = self.random.choice(nodes)
            await self._end(each)
            await asyncio.sleep(self.random.uniform(1, SESSION_TIMEOUT_SECONDS * 2))
            await self._start(each)
            await asyncio.sleep(self.random.uniform(0, 8))
        for each in nodes:
            await self._end(each)
        if _topics(snapshot.tree) == _topics(self.world.ensemble.tree):
            # Else it would lack topics, which the operator is told to bring back first.
            self.world.ensemble.tree = snapshot.tree
            self.world.watch.tree_was_restored()
            self.world.note("ZooKeeper is an older copy")
        for each in self.random.sample(nodes, len(nodes)):
            each.start()
            await asyncio.sleep(self.random.uniform(0, 3))
        await until(lambda: all(each.ready for each in nodes), READY_SECONDS)

    async def refused_login(self, node: Node) -> None:
        """Members of the ensemble refuse the login of a broker while its credentials are changed.

        Each refusal is a lost connection. When the last member is right again, the session is over,
        and for a while connections are still lost. The broker has to register again by itself.
        """
        session = self.leaders.session(node)
        if session is None:
            return
        session.cut(refuses=True)
        await asyncio.sleep(SESSION_TIMEOUT_SECONDS * self.random.uniform(0.5, 2))
        session.lost_one_in = self.random.choice([1, 2, 2, 3])
        session.heal()
        await asyncio.sleep(self.random.uniform(0.2, 4))
        session.lost_one_in = 0
        path = znodes.broker_path(node.broker_id)
        nodes = self.world.ensemble.tree.nodes
        if node.is_up and not await until(lambda: path in nodes, NOTICED_SECONDS):
            self.world.complain(f"{node.host} does not register again")

    # --- helpers ---------------------------------------------------------------------------

    async def _end(self, node: Node) -> None:
        """A clean stop, or a kill."""
        if node.is_up and self.random.random() < 0.5:
            await node.stop()
        node.kill()

    def _made_again(self, endings: tuple[str, ...]) -> list[str]:
        """The files that a broker makes again from its segments. Not the producers of a tiered log:
        those that wrote to remote segments only are in its snapshots, here as in Kafka."""
        return [each for each in endings if each != ".snapshot" or not self.world.shape.tiered]

    async def _start(self, node: Node) -> None:
        if not node.is_up:
            node.start()
        if not await until(lambda: node.ready, READY_SECONDS) and node.is_up:
            self.world.complain(f"{node.host} does not start")

    async def _replace_replica(self, node: Node, folder: str, where: TopicPartition) -> bool:
        """Stops the broker, removes the directory of one partition and starts it again. False if
        nobody else would have its records. Partitions that only this broker has are not touched."""
        await settles(self.world)
        if not self.leaders.disks.has_survivors(node, of=where):
            return False
        node.kill()
        for path in _contents(node.disk):
            if path.startswith(f"{folder}/"):
                _write(node.disk, path, None)
        await self._start(node)
        return True

    def _damaged(self, content: bytes, *, is_text: bool) -> bytes:
        """Bit flips, zeros, a truncation, or other bytes. No other number in a text: that is a
        valid file, which says something else."""
        kind, size = self.random.randrange(1 if is_text else 0, 4 if is_text else 5), len(content)
        if kind == 4 and size >= 8:  # an entry of an index with an impossible position
            at = self.random.choice([size - 4, self.random.randrange(size // 8) * 8 + 4])
            position = self.random.choice([-5, -1, -(2**31), 2**31 - 1, 7])
            return content[:at] + position.to_bytes(4, "big", signed=True) + content[at + 4 :]
        if kind == 0 and size:
            changed = bytearray(content)
            for _ in range(self.random.randint(1, 8)):
                changed[self.random.randrange(size)] ^= 1 << self.random.randrange(8)
            return bytes(changed)
        if kind == 1:
            return bytes(size)
        if kind == 2:
            return content[: self.random.randint(0, size)]
        return self.random.randbytes(self.random.randint(1, max(size, 16)))

    def _check_kept(self, node: Node, before: dict[str, bytes]) -> None:
        """Each segment that the broker had is there, or is set aside, or its end was not committed
        and the broker has the records of a later leader instead."""
        now = _contents(node.disk)
        aside = {path: each for path, each in now.items() if path.endswith(SET_ASIDE_SUFFIX)}
        for path, content in before.items():
            if now.get(path, b"").startswith(content):
                continue
            if any(each.startswith(content) for each in aside.values()):
                continue
            topic, _, index = path.split("/")[-2].rpartition("-")
            committed = dict(self.world.watch.batches(topic, int(index)))
            if is_superseded(content, _log_of(node.disk, path), committed):
                continue
            if not self._is_moved_on(node, path, len(content), now):
                self.world.complain(f"{node.host}: {path} ({len(content)} bytes) is gone")

    @staticmethod
    def _is_moved_on(node: Node, path: str, size: int, now: dict[str, bytes]) -> bool:
        """Whether a live segment is shorter because of the protocol: the end of a log that is not
        committed may be truncated, and old segments expire."""
        folder, _, name = path.rpartition("/")
        base = int(name.partition(".")[0])
        server: Any = node.server
        log = next((each for each in server.parts.logs.logs() if each.path == folder), None)
        if log is None:
            return False
        return base < log.log_start_offset or (path in now and len(now[path]) < size)

    def _check_not_set_aside(self) -> None:
        for node in self.world.nodes.values():
            for path in node.log_directories:
                for name in node.disk.directories_in(path):
                    if name.startswith(f"{TOPIC}-") and name.endswith("-stray"):
                        self.world.complain(f"{node.host} has set {name} aside")


def _log_of(disk: Disk, path: str) -> dict[str, bytes]:
    """The segments of the log that has the segment `path`."""
    folder = path.rpartition("/")[0]
    return {
        each: content
        for each, content in _segments(disk).items()
        if each.rpartition("/")[0] == folder
    }


def is_superseded(content: bytes, log: dict[str, bytes], committed: dict[int, bytes]) -> bool:
    """Whether a follower has truncated the end of a segment and copied on from a later leader.

    KIP-101 truncates to where the log diverges: from the first batch that the log lacks on, it has
    batches of a later leader epoch, which may be longer than what they replaced. `committed`: by
    base offset. None of these is ever truncated.
    """
    live = {
        header.base_offset: (header, bytes(segment[position : position + _size(header)]))
        for segment in log.values()
        for position, header in iterate_batches(segment)
    }
    for position, lost in iterate_batches(content):
        batch = bytes(content[position : position + _size(lost)])
        if lost.base_offset in live and live[lost.base_offset][1] == batch:
            continue
        return committed.get(lost.base_offset) != batch and any(
            each.base_offset <= lost.base_offset <= each.last_offset
            and each.partition_leader_epoch > lost.partition_leader_epoch
            for each, _ in live.values()
        )
    return False


def _size(header: BatchHeader) -> int:
    return LOG_OVERHEAD + header.batch_length


def _ends_transaction(segments: dict[str, bytes], chosen: str) -> bool:
    """Whether a segment has the marker of a transaction that began in an earlier one."""
    began_in: dict[int, str] = {}
    for path, content in sorted(segments.items()):
        for _, header in iterate_batches(content):
            if header.is_control:
                if path == chosen and began_in.get(header.producer_id, path) != path:
                    return True
                began_in.pop(header.producer_id, None)
            elif header.is_transactional:
                began_in.setdefault(header.producer_id, path)
    return False


def _last_written_in(segments: dict[str, bytes], chosen: str) -> set[int]:
    """The producers whose last batch with a sequence in a log is in one of its segments."""
    last = {
        header.producer_id: path
        for path, content in sorted(segments.items())
        for _, header in iterate_batches(content)
        if not header.is_control
    }
    return {producer_id for producer_id, path in last.items() if path == chosen}


def _topics(tree: EmbeddedTree) -> set[str]:
    return set(tree.nodes[znodes.TOPICS].children)


def _contents(disk: Disk) -> dict[str, bytes]:
    """The files of a machine whose process is dead, or of one that runs."""
    return {
        f"{directory}/{name}".replace("//", "/"): file.content()
        for directory, names in disk.names.items()
        for name, file in names.live.items()
    }


def _segments(disk: Disk) -> dict[str, bytes]:
    """The segments of the topic, without those that are being deleted."""
    return {
        path: content
        for path, content in _contents(disk).items()
        if path.endswith(".log") and f"/{TOPIC}-" in path and "-delete/" not in path and content
    }


def _may_be_of(snapshot: bytes, path: str, disk: Disk) -> bool:
    """Whether the newest batch in a producer snapshot is in the log of `path`, too, or nothing says
    that it is not: then it may be a true one."""
    try:
        entries = [each for each in decode_snapshot(path, snapshot) if each.batches]
    except CorruptFile:
        return False
    newest = max(entries, key=lambda each: each.batches[-1].last_offset, default=None)
    if newest is None:
        return False
    folder, at = path.rpartition("/")[0], newest.batches[-1].last_offset
    for name, content in _segments(disk).items():
        if name.startswith(f"{folder}/"):
            for _, header in iterate_batches(content):
                if header.base_offset <= at <= header.last_offset:
                    return (newest.producer_id, at, newest.last_sequence) == (
                        header.producer_id,
                        header.last_offset,
                        header.last_sequence,
                    )
    return True


def _write(disk: Disk, path: str, content: bytes | None) -> None:
    """Replaces a file of a machine whose process is dead; removes it for None. It is durable."""
    directory, _, name = path.rpartition("/")
    names = disk.names[directory or "/"]
    if content is None:
        names.live.pop(name, None)
        names.durable.pop(name, None)
    else:
        names.live[name] = names.durable[name] = File(path, content)


def _older(world: World, keeps_topic: bool) -> Ensemble:
    """A ZooKeeper from a backup: without sessions, and without the topic unless it had it."""
    older = Ensemble(world.loop, world.seed)
    older.tree = EmbeddedTree(world.ensemble.tree.now_ms)
    for path, node in sorted(world.ensemble.tree.nodes.items()):
        if node.ephemeral_owner or path == "/":
            continue
        if not keeps_topic and (f"{path}/").startswith(
            (f"{znodes.topic_path(TOPIC)}/", f"/config/topics/{TOPIC}/")
        ):
            continue
        copied = Znode(node.data, node.czxid, node.ctime_ms)
        copied.version, copied.created_children = node.version, node.created_children
        older.tree.nodes[path] = copied
        older.tree.nodes[path.rpartition("/")[0] or "/"].children.add(path.rpartition("/")[2])
    older.tree.zxid = world.ensemble.tree.zxid // 2
    return older
