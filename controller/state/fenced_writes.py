"""The writes of the controller, fenced by its controller epoch.

Each write is a multi that starts with a check of the version of `/controller_epoch`. Each
election changes that znode, in the same multi that creates `/controller`. So after another
controller is elected, each write of the old one fails as a whole with `ControllerMoved`: a fenced
controller writes nothing. Mirrors the `expectedControllerEpochZkVersion` of Kafka's
`KafkaZkClient`.
"""

from collections.abc import Mapping, Sequence, Set

from ottla.controller.errors import ControllerMoved
from ottla.controller.model import LeaderAndIsr
from ottla.controller.tree import znodes
from ottla.controller.tree.store import (
    ANY_VERSION,
    BadVersion,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SetOp,
    Stat,
    StoreError,
    ZnodeStore,
    ancestors_of,
    paths_below,
)
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

MAX_OPS_PER_MULTI = 1000
"""ZooKeeper refuses packets over 1 MiB (jute.maxbuffer); a thousand paths are well below."""
OPS_PER_GROUP = 100
"""The operations of independent writes that are sent as one multi; few enough to repeat."""
DATA_PER_GROUP = 256 * 1024
"""The bytes of their data, as ZooKeeper closes the connection over a packet above 1 MiB. A topic
has 20 bytes or so for each partition."""

StateResult = LeaderAndIsr | StoreError


class FencedWriter:
    """Writes with the controller epoch of the last `set_epoch`.

    A write is durable when the call returns.
    """

    def __init__(self, store: ZnodeStore) -> None:
        self.store = store
        self.epoch = 0
        self.epoch_version = -1
        #: The version of `znodes.REGISTRATIONS`, read before the brokers that the context has;
        #: -1 without that znode.
        self.registrations_version = -1

    def set_epoch(self, epoch: int, version: int) -> None:
        self.epoch = epoch
        self.epoch_version = version

    # General

    def _fence(self) -> CheckOp:
        if self.epoch_version < 0:
            raise ControllerMoved("This broker is not the controller.")
        return CheckOp(znodes.CONTROLLER_EPOCH, self.epoch_version)

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """An atomic multi; raises the error of the first failed operation, or ControllerMoved."""
        try:
            return (await self.store.multi([self._fence(), *ops]))[1:]
        except StoreError as error:
            raise self._translated(error) from None

    async def multi_many(
        self, batches: Sequence[Sequence[Op]]
    ) -> list[list[OpResult] | StoreError]:
        """Independent fenced multis; the `index` of an error does not count the fence.

        Groups of them are sent as one multi first, since most succeed; if that fails, nothing of it
        was applied, and the multis of the group are sent one by one.
        """
        responses: dict[int, list[OpResult] | StoreError] = {}
        groups = _grouped(batches)
        results = await self._send([[op for at in group for op in batches[at]] for group in groups])
        alone: list[int] = []
        for group, result in zip(groups, results, strict=True):
            if isinstance(result, StoreError):
                if len(group) == 1:
                    responses[group[0]] = result
                else:
                    alone.extend(group)
                continue
            start = 0
            for at in group:
                responses[at] = result[start : start + len(batches[at])]
                start += len(batches[at])
        for at, result in zip(alone, await self._send([batches[at] for at in alone]), strict=True):
            responses[at] = result
        return [responses[at] for at in range(len(batches))]

    async def _send(self, batches: Sequence[Sequence[Op]]) -> list[list[OpResult] | StoreError]:
        if not batches:
            return []
        fence = self._fence()
        responses: list[list[OpResult] | StoreError] = []
        for result in await self.store.multi_many([[fence, *ops] for ops in batches]):
            if isinstance(result, StoreError):
                translated = self._translated(result)
                if isinstance(translated, ControllerMoved):
                    raise translated
                responses.append(translated)
            else:
                responses.append(result[1:])
        return responses

    def _translated(self, error: StoreError) -> StoreError | ControllerMoved:
        if error.index == 0 and isinstance(error, (BadVersion, NoNode)):
            return ControllerMoved(
                f"The controller epoch is no longer {self.epoch}: another broker was elected."
            )
        if error.index > 0:
            error.index -= 1
        return error

    # Partition states

    async def create_states(
        self, states: Mapping[TopicPartition, LeaderAndIsr]
    ) -> dict[TopicPartition, StateResult]:
        """Create the state znodes of new partitions; NodeExists for those that have one."""
        topics = dict.fromkeys(znodes.partitions_path(partition[0]) for partition in states)
        known = await self.store.get_many(list(topics))
        missing = [path for path, found in zip(topics, known, strict=True) if found is None]
        for error in await self.multi_many([[CreateOp(path)] for path in missing]):
            if isinstance(error, StoreError) and not isinstance(error, (NodeExists, NoNode)):
                raise error
        results = await self._try_create(states, with_parent=True)
        # A controller that failed meanwhile may have left the partition's znode without its state.
        again = {
            partition: states[partition]
            for partition, result in results.items()
            if isinstance(result, NodeExists) and result.index == 0
        }
        results.update(await self._try_create(again, with_parent=False))
        return results

    async def _try_create(
        self, states: Mapping[TopicPartition, LeaderAndIsr], *, with_parent: bool
    ) -> dict[TopicPartition, StateResult]:
        batches: list[list[Op]] = []
        async for partition, state in over(states.items()):
            ops: list[Op] = [CreateOp(znodes.partition_path(partition))] if with_parent else []
            ops.append(CreateOp(znodes.state_path(partition), znodes.encode_state(state)))
            batches.append(ops)
        responses = await self.multi_many(batches)
        return {
            partition: response if isinstance(response, StoreError) else states[partition]
            for partition, response in zip(states, responses, strict=True)
        }

    async def update_states(
        self,
        states: Mapping[TopicPartition, LeaderAndIsr],
        joined: Set[TopicPartition] = frozenset(),
    ) -> tuple[dict[TopicPartition, StateResult], list[TopicPartition]]:
        """Write states with a compare-and-set on each partition epoch.

        Returns the written states (with the new partition epoch and our controller epoch) or
        errors, and the partitions whose znode has changed meanwhile: those have to be read again.
        `joined` are the partitions that get new members of the ISR: they get BadVersion as their
        error if a broker has registered since the brokers were read.
        """
        version = self.registrations_version
        checks = [CheckOp(znodes.REGISTRATIONS, version)] if version >= 0 else []
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        batches: list[list[Op]] = []
        async for partition, state in over(states.items()):
            wanted[partition] = ours = state._replace(controller_epoch=self.epoch)
            data = znodes.encode_state(ours)
            change = SetOp(znodes.state_path(partition), data, ours.partition_epoch)
            batches.append([*checks, change] if partition in joined else [change])
        responses = await self.multi_many(batches)
        finished: dict[TopicPartition, StateResult] = {}
        changed_meanwhile: list[TopicPartition] = []
        results = zip(wanted.items(), responses, strict=True)
        async for (partition, state), response in over(results):
            is_checked = bool(checks) and partition in joined
            is_refused = is_checked and isinstance(response, StoreError) and response.index == 0
            if isinstance(response, BadVersion) and not is_refused:
                changed_meanwhile.append(partition)
            elif isinstance(response, StoreError):
                finished[partition] = response
            else:
                stat = response[-1]
                assert isinstance(stat, Stat)
                finished[partition] = state._replace(partition_epoch=stat.version)
        return finished, changed_meanwhile

    # Single nodes

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        stat = (await self.multi([SetOp(path, data, version)]))[0]
        assert isinstance(stat, Stat)
        return stat

    async def set_or_create(self, path: str, data: bytes) -> None:
        try:
            await self.multi([SetOp(path, data)])
        except NoNode:
            needed = ancestors_of(path)
            present = await self.store.get_many(needed)
            ops: list[Op] = [
                CreateOp(each) for each, found in zip(needed, present, strict=True) if found is None
            ]
            await self.multi([*ops, CreateOp(path, data)])

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete the znodes that exist; they have no children."""
        for start in range(0, len(paths), MAX_OPS_PER_MULTI):
            part = paths[start : start + MAX_OPS_PER_MULTI]
            for response in await self.multi_many([[DeleteOp(path)] for path in part]):
                if isinstance(response, StoreError) and not isinstance(response, NoNode):
                    raise response

    async def delete_tree(self, path: str, last: Sequence[Op] = ()) -> None:
        """Delete a znode and all below it; `last` is part of the final multi."""
        for _attempt in range(3):  # another client may add a child meanwhile
            paths = list(reversed(await paths_below(self.store, path)))
            try:
                while len(paths) > MAX_OPS_PER_MULTI:
                    part, paths = paths[:MAX_OPS_PER_MULTI], paths[MAX_OPS_PER_MULTI:]
                    await self.multi([DeleteOp(each) for each in part])
                await self.multi([*(DeleteOp(each) for each in paths), *last])
            except (NotEmpty, NoNode):
                continue
            return
        raise NotEmpty(path, f"{path} gets new children while it is deleted")


def _grouped(batches: Sequence[Sequence[Op]]) -> list[list[int]]:
    """The indexes of the batches, in groups of up to OPS_PER_GROUP operations with up to
    DATA_PER_GROUP bytes."""
    groups: list[list[int]] = []
    size = data = 0
    for at, ops in enumerate(batches):
        more = sum(len(op.data) for op in ops if isinstance(op, CreateOp | SetOp))
        if not groups or size + len(ops) > OPS_PER_GROUP or data + more > DATA_PER_GROUP:
            groups.append([])
            size = data = 0
        groups[-1].append(at)
        size += len(ops)
        data += more
    return groups
