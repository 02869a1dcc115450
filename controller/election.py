"""Who is the controller: ``/controller`` and ``/controller_epoch``.

Whoever makes the ephemeral ``/controller`` is it. In the same multi the epoch goes up by a
compare-and-set on the epoch node's version, so that every election fences the writes of the
controller before (see fenced_writes.py).
"""

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

NO_CONTROLLER = -1


class Elected(NamedTuple):
    epoch: int
    epoch_version: int  # version of /controller_epoch: what every write is fenced with


async def current_controller(store: ZnodeStore) -> int:
    """The broker id in ``/controller``, -1 when there is none."""
    try:
        data, _ = await store.get(znodes.CONTROLLER)
    except NoNode:
        return NO_CONTROLLER
    return znodes.decode_controller(data)


async def read_epoch(store: ZnodeStore) -> tuple[int, int]:
    """(epoch, version of its node); makes the node with epoch 0 in a new cluster."""
    while True:
        try:
            data, stat = await store.get(znodes.CONTROLLER_EPOCH)
            return znodes.decode_controller_epoch(data), stat.version
        except NoNode:
            pass
        try:
            await store.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
        except NodeExists:  # another broker was quicker; read what it made
            continue


async def elect(store: ZnodeStore, broker_id: int, now_ms: int) -> Elected:
    """Becomes controller or raises ControllerMoved because another one is."""
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
            # A write whose answer was lost: we are it. Its epoch is the one there now.
            epoch, version = await read_epoch(store)
            return Elected(epoch, version)
        raise ControllerMoved(f"broker {broker_id} lost the election: {error}") from None
    stat = results[1]
    assert isinstance(stat, Stat)
    return Elected(epoch + 1, stat.version)


async def _is_ours(store: ZnodeStore, broker_id: int) -> bool:
    """Whether ``/controller`` names us and belongs to our living session."""
    try:
        data, stat = await store.get(znodes.CONTROLLER)
    except NoNode:
        return False
    return znodes.decode_controller(data) == broker_id and stat.ephemeral_owner == store.session_id


async def remove_own(store: ZnodeStore, broker_id: int) -> None:
    """Deletes a ``/controller`` that names us and that nobody acts on: it was left by an earlier
    session of this broker, or by a resignation whose write was lost."""
    try:
        data, stat = await store.get(znodes.CONTROLLER)
        if znodes.decode_controller(data) == broker_id:
            await store.delete(znodes.CONTROLLER, stat.version)
    except (NoNode, BadVersion):
        return


async def resign(store: ZnodeStore, epoch_version: int) -> None:
    """Deletes ``/controller`` if no other was elected since; never raises for losing that race."""
    try:
        await store.multi(
            [CheckOp(znodes.CONTROLLER_EPOCH, epoch_version), DeleteOp(znodes.CONTROLLER)]
        )
    except (BadVersion, NoNode):
        return
