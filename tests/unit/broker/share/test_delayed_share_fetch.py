import asyncio

from ottla.broker.runtime.tasks import spawn
from ottla.broker.share.delayed_share_fetch import (
    DelayedShareFetch,
    ShareFetchItem,
    ShareFetchParams,
    ShareFetchResult,
)
from ottla.broker.share.share_partition import Acknowledgement
from ottla.broker.share.share_partitions import watch_key
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.replicas import TOPIC, run_now
from tests.unit.broker.share.scene import KEY, ShareScene

ACCEPT = 1
LOCK_MS = 1000
MAX_WAIT_MS = 5000


class Waiting:
    """A share fetch in the purgatory of a broker."""

    is_awaited = True
    may_read = True

    def __init__(self, scene: ShareScene, member: str = "m") -> None:
        self.results: list[ShareFetchResult] = []
        params = ShareFetchParams("g", member, MAX_WAIT_MS, 1, 1 << 20, 500, 500, False)
        operation = DelayedShareFetch(
            params,
            [ShareFetchItem(KEY, TOPIC)],
            scene.shares,
            scene.clock,
            lambda: self.is_awaited,
            lambda topic: self.may_read,
            self.results.extend,
        )
        keys = [watch_key(KEY), (TOPIC, 0)]
        scene.manager.fetch_purgatory.try_complete_else_watch(operation, keys)


def test_an_append_completes_it() -> None:
    scene = ShareScene()
    waiting = Waiting(scene)
    assert not waiting.results
    scene.append(2)
    assert waiting.results[0].acquired == [(0, 1, 1)]


def test_a_right_that_is_revoked_meanwhile_acquires_nothing() -> None:
    scene = ShareScene()
    waiting = Waiting(scene)
    waiting.may_read = False
    scene.append(2)
    (result,) = waiting.results
    assert (result.error_code, result.records, result.acquired) == (
        *(ErrorCode.TOPIC_AUTHORIZATION_FAILED, b""),
        [],
    )
    assert Waiting(scene, "other").results[0].acquired == [(0, 1, 1)]


def test_a_released_record_completes_it() -> None:
    scene = ShareScene()
    scene.append(2)
    assert Waiting(scene).results
    waiting = Waiting(scene, "other")
    assert not waiting.results
    run_now(scene.shares.release("m", "g"))
    assert waiting.results[0].acquired == [(0, 1, 2)]


def test_it_expires_without_records() -> None:
    scene = ShareScene()
    waiting = Waiting(scene)
    scene.timer.advance(MAX_WAIT_MS + 1)
    assert waiting.results[0].acquired == []
    assert waiting.results[0].error_code == ErrorCode.NONE


def test_the_end_of_the_leadership_completes_it() -> None:
    scene = ShareScene()
    waiting = Waiting(scene)
    scene.follow(2, epoch=1)
    scene.manager.fetch_purgatory.check_and_complete((TOPIC, 0))
    assert waiting.results[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_nothing_is_acquired_for_a_member_that_is_gone() -> None:
    scene = ShareScene()
    gone = Waiting(scene)
    gone.is_awaited = False
    scene.append(2)
    assert gone.results == []
    assert scene.manager.fetch_purgatory.delayed == 0
    assert Waiting(scene, "other").results[0].acquired == [(0, 1, 1)]


async def locks_that_end_during_a_write(error: int) -> tuple[Waiting, asyncio.Task[None]]:
    """The locks of acknowledged records end, then the write succeeds or fails; a share fetch of
    another member waits, and the acknowledgement."""
    scene = ShareScene(share_record_lock_duration_ms=str(LOCK_MS))
    scene.append(2)
    assert Waiting(scene).results
    scene.persister.gate = asyncio.Event()
    acknowledged = spawn(
        scene.shares.acknowledge(KEY, TOPIC, "m", [Acknowledgement(0, 1, [ACCEPT])]),
        name="acknowledge",
    )
    await asyncio.sleep(0)
    waiting = Waiting(scene, "other")
    scene.timer.advance(LOCK_MS + 1)
    assert not waiting.results, "the write can succeed still"
    scene.persister.next_error = error
    scene.persister.gate.set()
    await asyncio.wait([acknowledged])
    return waiting, acknowledged


async def test_a_write_that_succeeds_after_the_end_of_the_locks() -> None:
    waiting, acknowledged = await locks_that_end_during_a_write(ErrorCode.NONE)
    assert acknowledged.exception() is None
    assert not waiting.results


async def test_a_write_that_fails_after_the_end_of_the_locks() -> None:
    """The records are available at once, as nothing else would complete the waiting fetch."""
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    waiting, acknowledged = await locks_that_end_during_a_write(code)
    assert isinstance(acknowledged.exception(), KafkaError)
    assert waiting.results[0].acquired == [(0, 1, 2)]
