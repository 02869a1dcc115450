"""``/controller`` and ``/controller_epoch``, on every store."""

from __future__ import annotations

import pytest

from ottla.controller.election import (
    NO_CONTROLLER,
    Current,
    MigratedToKraft,
    check_not_migrated,
    current_controller,
    elect,
    read_epoch,
    remove_own,
    resign,
)
from ottla.controller.errors import ControllerMoved
from ottla.controller.tree import znodes
from tests.doubles.znode_ensembles import EmbeddedEnsemble, Ensemble


async def test_first_election(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    assert await current_controller(store) == Current(NO_CONTROLLER)
    elected = await elect(store, 7, 123)
    assert elected.epoch == 1
    assert await current_controller(store) == Current(7)
    assert await read_epoch(store) == (1, elected.epoch_version)
    _, stat = await store.get(znodes.CONTROLLER)
    assert stat.ephemeral_owner == store.session_id


async def test_only_one_is_elected_and_each_raises_the_epoch(ensemble: Ensemble) -> None:
    first, second = await ensemble.open(), await ensemble.open()
    one = await elect(first, 1, 0)
    with pytest.raises(ControllerMoved):
        await elect(second, 2, 0)
    assert await read_epoch(second) == (1, one.epoch_version)  # the loser changed nothing
    await first.close()
    two = await elect(second, 2, 0)
    assert two.epoch == 2
    assert two.epoch_version > one.epoch_version


async def test_resignation(ensemble: Ensemble) -> None:
    first, second = await ensemble.open(), await ensemble.open()
    elected = await elect(first, 1, 0)
    await resign(first, elected.epoch_version)
    assert await current_controller(second) == Current(NO_CONTROLLER)
    await elect(second, 2, 0)
    await resign(first, elected.epoch_version)  # it is another's by now
    assert await current_controller(first) == Current(2)


async def test_lost_response_of_the_own_election(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    before = await elect(store, 1, 0)
    assert await elect(store, 1, 0) == before


async def test_node_that_an_earlier_session_left(ensemble: Ensemble) -> None:
    earlier, now = await ensemble.open(), await ensemble.open()
    await elect(earlier, 1, 0)
    with pytest.raises(ControllerMoved):
        await elect(now, 1, 0)
    await remove_own(now, 1)
    assert (await elect(now, 1, 0)).epoch == 2
    await remove_own(earlier, 9)  # not its name
    assert await current_controller(earlier) == Current(1)
    await now.close()
    await remove_own(earlier, 1)  # nothing there


async def test_epoch_that_moves_between_look_and_write(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = EmbeddedEnsemble()
    first, second = await ensemble.open(), await ensemble.open()
    await read_epoch(first)
    original = first.multi

    async def late(ops: object) -> object:
        two = await elect(second, 2, 0)
        await resign(second, two.epoch_version)
        return await original(ops)  # type: ignore[arg-type] # passed through

    monkeypatch.setattr(first, "multi", late)
    with pytest.raises(ControllerMoved):
        await elect(first, 1, 0)
    assert await current_controller(first) == Current(NO_CONTROLLER)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"text", b"[]", b"{}", b'{"brokerid":"x"}', b"[" * 100_000]
)
async def test_what_no_controller_has_written_is_deleted(ensemble: Ensemble, data: bytes) -> None:
    """Nobody else would: a session ends, this would stay."""
    store = await ensemble.open()
    await store.create(znodes.CONTROLLER, data)
    await remove_own(store, 1)
    await store.create(znodes.CONTROLLER, data)
    with pytest.raises(ControllerMoved):
        await elect(store, 1, 0)  # deletes it, and the watch on it leads to the next election
    await elect(store, 1, 0)
    assert await current_controller(store) == Current(1)


async def test_a_kraft_controller_is_not_replaced(ensemble: Ensemble) -> None:
    """Not even one with the id of this broker; its znode is there without its session."""
    store = await ensemble.open()
    await elect(store, 1, 0)
    await check_not_migrated(store)
    await remove_own(store, 1)
    taken = b'{"version":2,"brokerid":1,"timestamp":"0","kraftControllerEpoch":4}'
    await store.create(znodes.CONTROLLER, taken)
    await remove_own(store, 1)
    assert await current_controller(store) == Current(1, 4)
    with pytest.raises(ControllerMoved):
        await elect(store, 1, 0)
    with pytest.raises(MigratedToKraft, match=r"KRaft controller 1 has taken over .* in epoch 4"):
        await check_not_migrated(store)
    await store.delete(znodes.CONTROLLER)
    assert (await elect(store, 1, 0)).epoch == 2
