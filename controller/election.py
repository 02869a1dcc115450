"""Controller election: `/controller` and `/controller_epoch`.

The broker that creates the ephemeral `/controller` is the controller. The same multi increments
the controller epoch with a compare-and-set on the version of its znode, so that each election
fences the writes of the previous controller (see fenced_writes.py). Mirrors
`registerControllerAndIncrementControllerEpoch` of Kafka's `KafkaZkClient`.
"""

import logging
from contextlib import suppress
from typing import NamedTuple

from ottla.controller.errors import ControllerMoved
from ottla.controller.tree import znodes
from ottla.controller.tree.store import (
    BadVersion,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    SetOp,
    Stat,
    ZnodeStore,
)
from ottla.controller.tree.znode_json import MalformedZnode

logger = logging.getLogger("ottla.controller")

NO_CONTROLLER = -1


class MigratedToKraft(Exception):
    """A KRaft controller has taken over the cluster, in which Ottla has no part any more."""


class Current(NamedTuple):
    """The content of `/controller`.

    A KRaft controller writes its node id and its epoch there when it migrates the metadata
    (KIP-866). Its znode is not ephemeral: an operator deletes it to go back.
    """

    broker_id: int
    kraft_epoch: int = -1

    def explain_kraft(self) -> str:
        """The takeover by a KRaft controller, as text; empty for a broker or no controller."""
        if self.kraft_epoch < 0:
            return ""
        return (
            f"The KRaft controller {self.broker_id} has taken over the cluster in epoch "
            f"{self.kraft_epoch}, and brokers of Ottla have no part in its migration"
        )


HOW_TO_LEAVE = (
    "start Kafka 3.9 with this directory and zookeeper.metadata.migration.enable=true instead, or "
    "to go back stop the KRaft controllers, then delete the znodes /controller and /migration"
)


class Elected(NamedTuple):
    epoch: int
    epoch_version: int  # version of /controller_epoch, which fences all writes


async def current_controller(store: ZnodeStore) -> Current:
    """The controller in `/controller`; the id is -1 when there is none."""
    found = await _read(store)
    return Current(NO_CONTROLLER) if found is None else found[0]


async def check_not_migrated(store: ZnodeStore) -> None:
    """Raise MigratedToKraft if a KRaft controller has taken over the cluster."""
    problem = (await current_controller(store)).explain_kraft()
    if problem:
        raise MigratedToKraft(f"{problem}: {HOW_TO_LEAVE}.")


async def _read(store: ZnodeStore) -> tuple[Current, Stat] | None:
    """The content of `/controller` and the Stat of the znode; None without a controller.

    What no controller can have written is deleted: nobody else would, and until then the cluster
    has none.
    """
    try:
        data, stat = await store.get(znodes.CONTROLLER)
    except NoNode:
        return None
    try:
        current = Current(znodes.decode_controller(data), znodes.decode_kraft_epoch(data))
        return current, stat
    except MalformedZnode as error:
        logger.error("Deleting a znode that no controller has written: %s", error)
    with suppress(NoNode, BadVersion):  # another broker did
        await store.delete(znodes.CONTROLLER, stat.version)
    return None


async def read_epoch(store: ZnodeStore) -> tuple[int, int]:
    """(controller epoch, version of its znode); creates the znode in a new cluster."""
    while True:
        try:
            data, stat = await store.get(znodes.CONTROLLER_EPOCH)
            return znodes.decode_controller_epoch(data), stat.version
        except NoNode:
            pass
        try:
            await store.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
        except NodeExists:  # another broker created it; read it
            continue


async def elect(store: ZnodeStore, broker_id: int, now_ms: int) -> Elected:
    """Become controller; raise ControllerMoved if another broker is elected first."""
    epoch, version = await read_epoch(store)
    try:
        results = await store.multi(
            [
                CreateOp(
                    znodes.CONTROLLER, znodes.encode_controller(broker_id, now_ms), ephemeral=True
                ),
                SetOp(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch + 1), version),
            ]
        )
    except (NodeExists, BadVersion) as error:
        if await _is_ours(store, broker_id):
            # A write whose response was lost: this broker is elected, with the epoch in the znode.
            epoch, version = await read_epoch(store)
            return Elected(epoch, version)
        raise ControllerMoved(
            f"Broker {broker_id} was not elected: another broker became controller ({error})"
        ) from None
    stat = results[1]
    assert isinstance(stat, Stat)
    return Elected(epoch + 1, stat.version)


async def _is_ours(store: ZnodeStore, broker_id: int) -> bool:
    """Whether `/controller` has our broker id and belongs to our session."""
    found = await _read(store)
    return (
        found is not None
        and found[0].broker_id == broker_id
        and found[1].ephemeral_owner == store.session_id
    )


async def remove_own(store: ZnodeStore, broker_id: int) -> None:
    """Delete a `/controller` with our broker id: it is from an earlier session of this broker,
    or from a resignation that could not be written."""
    found = await _read(store)
    if found is not None and found[0] == Current(broker_id):
        with suppress(NoNode, BadVersion):
            await store.delete(znodes.CONTROLLER, found[1].version)


async def resign(store: ZnodeStore, epoch_version: int) -> None:
    """Delete `/controller`, unless another controller was elected meanwhile."""
    try:
        await store.multi(
            [CheckOp(znodes.CONTROLLER_EPOCH, epoch_version), DeleteOp(znodes.CONTROLLER)]
        )
    except (BadVersion, NoNode):
        return
