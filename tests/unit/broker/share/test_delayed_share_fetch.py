from ottla.broker.share.delayed_share_fetch import (
    DelayedShareFetch,
    ShareFetchItem,
    ShareFetchParams,
    ShareFetchResult,
)
from ottla.broker.share.share_partitions import watch_key
from ottla.protocol.errors import ErrorCode
from tests.doubles.replicas import TOPIC, run_now
from tests.unit.broker.share.scene import KEY, ShareScene


class Waiting:
    """A share fetch in the purgatory of a broker."""

    def __init__(self, scene: ShareScene, member: str = "m") -> None:
        self.results: list[ShareFetchResult] = []
        params = ShareFetchParams("g", member, 1000, 1, 1 << 20, 500, 500, False)
        operation = DelayedShareFetch(
            params, [ShareFetchItem(KEY, TOPIC)], scene.shares, scene.clock, self.results.extend
        )
        keys = [watch_key(KEY), (TOPIC, 0)]
        scene.manager.fetch_purgatory.try_complete_else_watch(operation, keys)


def test_an_append_completes_it() -> None:
    scene = ShareScene()
    waiting = Waiting(scene)
    assert not waiting.results
    scene.append(2)
    assert waiting.results[0].acquired == [(0, 1, 1)]


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
    scene.timer.advance(1001)
    assert waiting.results[0].acquired == []
    assert waiting.results[0].error_code == ErrorCode.NONE


def test_the_end_of_the_leadership_completes_it() -> None:
    scene = ShareScene()
    waiting = Waiting(scene)
    scene.follow(2, epoch=1)
    scene.manager.fetch_purgatory.check_and_complete((TOPIC, 0))
    assert waiting.results[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
