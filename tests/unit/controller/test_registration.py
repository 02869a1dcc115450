"""Cluster id, broker ids, and the ephemeral node of a broker, on every store."""

from __future__ import annotations

import pytest

from ottla.controller.model import BrokerInfo, Endpoint
from ottla.controller.registration import (
    AdvertisedAddressTaken,
    BrokerIdTaken,
    BrokerRegistration,
    InconsistentClusterId,
    check_advertised_addresses,
    check_cluster_id,
    create_persistent_paths,
    generate_broker_id,
    get_or_create_cluster_id,
)
from ottla.controller.tree import znodes
from ottla.controller.tree.store import ConnectionLost, ZnodeStore
from tests.doubles.znode_ensembles import EmbeddedEnsemble, Ensemble


def info(port: int = 9092) -> BrokerInfo:
    return BrokerInfo(1, (Endpoint("PLAINTEXT", "PLAINTEXT", "host", port),))


def registration(
    store: ZnodeStore, broker: BrokerInfo | None = None, instance: str | None = None
) -> BrokerRegistration:
    return BrokerRegistration(store, broker or info(), lambda: 5, instance=instance)


async def test_persistent_paths(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    await create_persistent_paths(store)
    await create_persistent_paths(store)
    found = await store.get_many(list(znodes.PERSISTENT_PATHS))
    assert None not in found


async def test_cluster_id_is_made_once(ensemble: Ensemble) -> None:
    first, second = await ensemble.open(), await ensemble.open()
    cluster_id = await get_or_create_cluster_id(first)
    assert len(cluster_id) == 22
    assert await get_or_create_cluster_id(second) == cluster_id


def test_another_cluster_is_named_with_the_fix() -> None:
    check_cluster_id("A", None, "/data", "zk:2181")
    check_cluster_id("A", "A", "/data", "zk:2181")
    with pytest.raises(InconsistentClusterId) as wrong:
        check_cluster_id("A-cluster", "B-cluster", "/data", "zk:2181")
    for word in ("A-cluster", "B-cluster", "/data", "zk:2181", "zookeeper.connect", "log.dirs"):
        assert word in str(wrong.value)


async def test_generated_ids_are_never_used_twice(ensemble: Ensemble) -> None:
    first, second = await ensemble.open(), await ensemble.open()
    assert await generate_broker_id(first) == 1001
    assert await generate_broker_id(second) == 1002
    assert await generate_broker_id(first, 5000) == 5003


async def test_broker_epoch_is_the_creation_of_its_node(ensemble: Ensemble) -> None:
    store, other = await ensemble.open(), await ensemble.open()
    notified: list[int] = []
    broker = BrokerRegistration(store, info(), lambda: 5, on_registered=notified.append)
    epoch = await broker.register()
    data, stat = await other.get(znodes.broker_path(1))
    assert stat.czxid == epoch == broker.broker_epoch
    assert notified == [epoch]
    assert stat.ephemeral_owner == store.session_id
    assert znodes.decode_broker(1, data, epoch) == info()._replace(epoch=epoch)
    await store.close()
    assert await other.exists(znodes.broker_path(1)) is None
    assert await registration(other).register() > epoch


async def test_each_registration_is_counted(ensemble: Ensemble) -> None:
    """In the transaction that creates the znode of the broker, also when no znode is there yet."""
    store, other = await ensemble.open(), await ensemble.open()
    for count in (1, 2):
        epoch = await registration(other if count == 2 else store).register()
        stat = await other.exists(znodes.REGISTRATIONS)
        assert stat is not None
        assert (stat.version, stat.mzxid) == (count, epoch)
    await registration(other).register()  # it is registered already
    assert await other.exists(znodes.REGISTRATIONS) == stat


async def test_node_of_an_earlier_session_is_taken_over(ensemble: Ensemble) -> None:
    earlier, now = await ensemble.open(), await ensemble.open()
    first = await registration(earlier).register()
    second = await registration(now).register()
    assert second > first
    stat = await now.exists(znodes.broker_path(1))
    assert stat is not None
    assert stat.ephemeral_owner == now.session_id


async def test_node_of_the_own_session_is_ours(ensemble: Ensemble) -> None:
    """The response to the first attempt was lost."""
    store = await ensemble.open()
    first = await registration(store).register()
    assert await registration(store).register() == first


async def test_another_broker_with_our_id_is_named(ensemble: Ensemble) -> None:
    other, store = await ensemble.open(), await ensemble.open()
    await registration(other, info(1234)).register()
    with pytest.raises(BrokerIdTaken) as taken:
        await registration(store).register()
    for word in ("Broker id 1", "PLAINTEXT://host:1234", "broker.id"):
        assert word in str(taken.value)
    assert await other.exists(znodes.broker_path(1)) is not None


@pytest.mark.parametrize("data", [b"", b"garbage", b'{"version":5,"endpoints":7}'])
async def test_a_registration_that_cannot_be_read(ensemble: Ensemble, data: bytes) -> None:
    """It may be that of another broker; it goes with its session."""
    store, other = await ensemble.open(), await ensemble.open()
    broker = registration(store)
    path = znodes.broker_path(1)
    await create_persistent_paths(store)
    await other.create(path, data, ephemeral=True)
    with pytest.raises(BrokerIdTaken, match=f"{path}.*wait until its session has expired"):
        await broker.register()
    await other.delete(path)
    await other.create(path, data)
    with pytest.raises(BrokerIdTaken, match=f"No session holds it: delete {path}"):
        await broker.register()
    await other.delete(path)
    await broker.register()
    assert broker.taken == ""


async def test_loss_of_the_id_is_reported_until_it_is_ours_again(ensemble: Ensemble) -> None:
    """A machine that was paused wakes up: another one has its id."""
    ours, theirs = await ensemble.open(), await ensemble.open()
    problems: list[str] = []
    broker = BrokerRegistration(ours, info(), lambda: 5, on_taken=problems.append)
    other = registration(theirs, info(9093))
    await other.register()
    with pytest.raises(BrokerIdTaken):
        await broker.register()
    assert problems == [broker.taken]
    assert "PLAINTEXT://host:9093" in broker.taken
    await other.unregister()
    await broker.register()
    assert broker.taken == ""


async def test_data_directory_distinguishes_us_from_others() -> None:
    ensemble = EmbeddedEnsemble()
    earlier, now = await ensemble.open(), await ensemble.open()
    await registration(earlier, info(1234), "ours").register()
    await registration(now, info(), "ours").register()  # another port, but the same data
    with pytest.raises(BrokerIdTaken):  # the same listeners, but other data
        await registration(earlier, info(), "theirs").register()


async def test_unclean_shutdown_is_stated_also_after_an_update() -> None:
    store = await EmbeddedEnsemble().open()
    broker = registration(store)
    broker.unclean_shutdown = True
    epoch = await broker.register()
    await broker.update(info(1234))
    data, _ = await store.get(znodes.broker_path(1))
    found = znodes.decode_broker(1, data, epoch)
    assert found == info(1234)._replace(epoch=epoch, unclean_shutdown=True)


async def test_broker_that_stops_takes_its_own_node_only(ensemble: Ensemble) -> None:
    earlier, now = await ensemble.open(), await ensemble.open()
    first, second = registration(earlier), registration(now)
    await first.unregister()  # nothing is there
    await first.register()
    await second.register()
    await first.unregister()
    assert await now.exists(znodes.broker_path(1)) is not None, "it is that of the next session"
    await second.unregister()
    assert await now.exists(znodes.broker_path(1)) is None


async def test_update_keeps_the_epoch(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    broker = registration(store)
    epoch = await broker.register()
    await broker.update(info(1234))
    data, stat = await store.get(znodes.broker_path(1))
    assert stat.czxid == epoch
    assert znodes.decode_broker(1, data, -1).endpoints[0].port == 1234


async def test_update_without_a_node_is_in_the_next_registration(ensemble: Ensemble) -> None:
    """The session has expired: a znode that outlives its broker must not be created."""
    store = await ensemble.open()
    broker = registration(store)
    await broker.register()
    await broker.unregister()
    await broker.update(info(1234))
    assert await store.exists(znodes.broker_path(1)) is None
    epoch = await broker.register()
    data, stat = await store.get(znodes.broker_path(1))
    assert (stat.czxid, stat.ephemeral_owner) == (epoch, store.session_id)
    assert znodes.decode_broker(1, data, -1).endpoints[0].port == 1234


async def test_node_that_goes_while_we_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = EmbeddedEnsemble()
    earlier, now = await ensemble.open(), await ensemble.open()
    await registration(earlier).register()
    original = now.get

    async def gone(path: str) -> object:
        await earlier.close()
        return await original(path)

    monkeypatch.setattr(now, "get", gone)
    await registration(now).register()
    assert await now.exists(znodes.broker_path(1)) is not None


async def test_store_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await EmbeddedEnsemble().open()

    async def lost(*_: object, **__: object) -> object:
        raise ConnectionLost("/x")

    monkeypatch.setattr(store, "multi", lost)
    with pytest.raises(ConnectionLost):
        await registration(store).register()


async def test_replicas_are_checked_after_each_registration_until_it_succeeds(
    ensemble: Ensemble,
) -> None:
    checks: list[int] = []
    fails = [True]

    async def check(epoch: int) -> None:
        checks.append(epoch)
        if fails.pop():
            raise ConnectionLost("", "away")

    store = await ensemble.open()
    made = BrokerRegistration(store, info(), lambda: 5, check_replicas=check)
    with pytest.raises(ConnectionLost):
        await made.register()
    fails = [False]
    epoch = await made.register()
    assert checks == [epoch, epoch], "the registration itself was there already"


async def test_address_of_another_broker_is_refused(ensemble: Ensemble) -> None:
    other, store = await ensemble.open(), await ensemble.open()
    await create_persistent_paths(store)
    await registration(other, info(1234)).register()
    endpoint = Endpoint("OUTSIDE", "SSL", "host", 1234)  # another listener, the same address
    second = BrokerInfo(2, (Endpoint("PLAINTEXT", "PLAINTEXT", "host", 9092), endpoint))
    with pytest.raises(AdvertisedAddressTaken) as taken:
        await check_advertised_addresses(store, second)
    for word in ("Broker 1", "PLAINTEXT://host:1234", "(2)", "advertised.listeners"):
        assert word in str(taken.value)
    await check_advertised_addresses(store, second._replace(endpoints=second.endpoints[:1]))
    await check_advertised_addresses(store, info(1234))  # our own, of an earlier session
