from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.broker.replication.isr import IsrDecision, IsrManager, IsrProposal
from ottla.broker.replication.partition import Partition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.steps import run_at_once
from tests.doubles.replicas import Replicas


class Controller:
    """Keeps proposals until the test responds to them."""

    def __init__(self) -> None:
        self.proposals: list[tuple[IsrProposal, Callable[[IsrDecision], None]]] = []

    def submit(self, proposal: IsrProposal, on_decision: Callable[[IsrDecision], None]) -> None:
        self.proposals.append((proposal, on_decision))

    def agree(self) -> None:
        proposal, decided = self.proposals.pop(0)
        decided(
            IsrDecision(0, proposal.new_isr, proposal.leader_epoch, proposal.partition_epoch + 1)
        )

    def refuse(self, code: int) -> None:
        _, decided = self.proposals.pop(0)
        decided(IsrDecision(code, [], -1, -1))


class Scene:
    def __init__(self, isr: list[int]) -> None:
        self.replicas = Replicas()
        self.controller = Controller()
        self.completed: list[str] = []
        self.fenced: list[Partition] = []
        self.manager = IsrManager(
            self.controller,
            lambda partition: self.completed.append(partition.topic),
            self.fenced.append,
            self.replicas.timer,
        )
        self.partition = self.replicas.lead(replicas=[1, 2, 3], isr=isr, epoch=4)

    def fetch(self, broker_id: int, offset: int) -> None:
        follower = self.partition.followers[broker_id]
        end = self.replicas.log().log_end_offset
        follower.record_fetch(offset, 0, end, self.partition.context.now_ms())
        self.manager.maybe_expand(self.partition, follower)


def test_a_follower_at_the_high_watermark_joins() -> None:
    scene = Scene(isr=[1])
    scene.replicas.append(2)
    scene.fetch(2, 1)
    assert scene.controller.proposals == []
    scene.fetch(2, 2)
    proposal, _ = scene.controller.proposals[0]
    assert proposal.new_isr == [1, 2]
    assert scene.partition.isr == {1}
    assert scene.partition.maximal_isr == {1, 2}, "it counts from the moment it is proposed"
    scene.controller.agree()
    assert scene.partition.isr == {1, 2}
    assert scene.partition.partition_epoch == 1


def test_one_proposal_at_a_time() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.fetch(3, 0)
    assert len(scene.controller.proposals) == 1
    scene.controller.agree()
    scene.fetch(3, 0)
    assert scene.controller.proposals[0][0].new_isr == [1, 2, 3]


def test_a_dead_broker_does_not_join() -> None:
    scene = Scene(isr=[1])
    scene.replicas.live.discard(2)
    scene.fetch(2, 0)
    assert scene.controller.proposals == []


def test_a_follower_must_have_reached_the_leaders_epoch() -> None:
    """It could be elected before it has what was committed in earlier epochs."""
    scene = Scene(isr=[1])
    scene.replicas.append(2)
    scene.partition.leader_epoch_start_offset = 2
    scene.replicas.log().offsets.high_watermark = 1
    scene.fetch(2, 1)
    assert scene.controller.proposals == []
    scene.fetch(2, 2)
    assert len(scene.controller.proposals) == 1


def test_who_lags_too_long_leaves_and_counts_until_the_controller_agrees() -> None:
    scene = Scene(isr=[1, 2, 3])
    scene.replicas.append(2)
    scene.fetch(2, 2)
    scene.replicas.clock.advance(10_001)
    scene.fetch(2, 2)
    run_at_once(scene.manager.maybe_shrink([scene.partition]))
    assert scene.controller.proposals[0][0].new_isr == [1, 2]
    assert scene.partition.maximal_isr == {1, 2, 3}
    assert scene.replicas.log().high_watermark == 0
    scene.controller.agree()
    assert scene.replicas.log().high_watermark == 2
    assert scene.completed == ["t"]


def test_who_has_everything_never_lags() -> None:
    scene = Scene(isr=[1, 2, 3])
    scene.fetch(2, 0)
    scene.fetch(3, 0)
    scene.replicas.clock.advance(60_000)
    run_at_once(scene.manager.maybe_shrink([scene.partition]))
    assert scene.controller.proposals == []


def test_a_refusal_means_what_was_committed_holds() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(ErrorCode.INELIGIBLE_REPLICA)
    assert scene.partition.isr == scene.partition.maximal_isr == {1}
    assert scene.partition.pending_isr is None


def test_records_that_waited_for_a_refused_follower_are_committed() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.replicas.append(3)
    assert scene.replicas.log().high_watermark == 0, "the proposed follower has not fetched them"
    scene.controller.refuse(ErrorCode.INELIGIBLE_REPLICA)
    assert scene.replicas.log().high_watermark == 3, (
        "the follower may be gone, and no record may follow"
    )
    assert scene.completed == ["t"]


def test_records_that_waited_for_a_follower_that_died_before_it_joined_are_committed() -> None:
    """It fetched once more after it was refused, so that the high watermark waits for it."""
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(ErrorCode.INELIGIBLE_REPLICA)
    scene.fetch(2, 0)
    scene.replicas.append(3)
    run_at_once(scene.manager.maybe_shrink([scene.partition]))
    assert scene.replicas.log().high_watermark == 0
    scene.replicas.clock.advance(10_001)  # it does not fetch any more, and nothing is appended
    run_at_once(scene.manager.maybe_shrink([scene.partition]))
    assert scene.replicas.log().high_watermark == 3
    assert scene.completed == ["t"]


def test_a_refused_follower_is_not_proposed_with_each_of_its_fetches() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(ErrorCode.INELIGIBLE_REPLICA)
    for _ in range(10):
        scene.fetch(2, 0)
        scene.fetch(2, 0)
        scene.replicas.clock.advance(19)
    assert scene.controller.proposals == []
    scene.replicas.clock.advance(10)
    scene.fetch(2, 0)
    assert scene.controller.proposals[0][0].new_isr == [1, 2]


def test_a_new_leader_epoch_ends_the_wait_of_a_refused_follower() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(ErrorCode.OPERATION_NOT_ATTEMPTED)
    scene.replicas.order(1, epoch=5, replicas=[1, 2, 3], isr=[1], partition_epoch=3)
    scene.fetch(2, 0)
    assert scene.controller.proposals[0][0].new_isr == [1, 2]


def test_after_an_old_epoch_the_controllers_order_is_waited_for() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(ErrorCode.FENCED_LEADER_EPOCH)
    assert scene.controller.proposals == []
    assert scene.partition.maximal_isr == {1, 2}, "it may have been applied: the stricter one holds"
    scene.replicas.order(1, epoch=5, replicas=[1, 2, 3], isr=[1, 3], partition_epoch=7)
    assert scene.partition.maximal_isr == {1, 3}


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_fenced_leader_that_hears_no_more_steps_down(code: int) -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(code)
    scene.replicas.timer.advance(4_999)
    assert scene.fenced == [], "its LeaderAndIsr is usually on its way"
    scene.replicas.timer.advance(1)
    assert scene.fenced == [scene.partition]


def test_a_fenced_leader_that_gets_its_new_epoch_continues() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(ErrorCode.FENCED_LEADER_EPOCH)
    scene.replicas.order(1, epoch=5, replicas=[1, 2, 3], isr=[1], partition_epoch=7)
    scene.replicas.timer.advance(60_000)
    assert scene.fenced == []


def test_an_unforeseen_error_is_retried() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    for delay_ms in (50, 100, 200, 400, 800, 1_000, 1_000):
        scene.controller.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
        scene.replicas.timer.advance(delay_ms - 1)
        assert scene.controller.proposals == [], "it would be sent thousands of times a second"
        scene.replicas.timer.advance(1)
        assert len(scene.controller.proposals) == 1
    scene.controller.agree()
    assert scene.partition.isr == {1, 2}


def test_a_retry_that_waits_is_dropped_when_the_state_is_another() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
    scene.replicas.order(1, epoch=5, replicas=[1, 2, 3], isr=[1], partition_epoch=3)
    scene.fetch(3, 0)
    scene.replicas.timer.advance(2_000)
    (only,) = scene.controller.proposals
    assert only[0].new_isr == [1, 3]


def test_a_response_to_an_earlier_leadership_is_ignored() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.replicas.order(1, epoch=5, replicas=[1, 2, 3], isr=[1], partition_epoch=3)
    scene.controller.agree()
    assert scene.partition.isr == {1}
    assert scene.partition.partition_epoch == 3


def test_a_proposal_has_the_broker_epochs_of_the_moment_it_was_made() -> None:
    """A follower that restarts while the request is retried must not be let in by it (KIP-903)."""
    scene = Scene(isr=[1, 3])
    scene.partition.followers[2].broker_epoch = 40
    scene.fetch(2, 0)
    proposal, _ = scene.controller.proposals[0]
    scene.partition.followers[2].broker_epoch = 50
    assert proposal.broker_epochs == {2: 40, 3: -1}


def test_what_is_counted() -> None:
    scene = Scene(isr=[1, 3])
    manager = scene.manager

    def counts() -> tuple[int, int, int]:
        return manager.expands_total, manager.shrinks_total, manager.failed_updates_total

    assert counts() == (0, 0, 0)
    scene.fetch(2, 0)
    scene.controller.agree()
    assert counts() == (1, 0, 0)
    scene.replicas.append(1)
    scene.replicas.clock.advance(10_001)
    run_at_once(scene.manager.maybe_shrink([scene.partition]))
    scene.controller.agree()
    assert counts() == (1, 1, 0)
    scene.fetch(2, 1)
    scene.controller.refuse(ErrorCode.INELIGIBLE_REPLICA)
    assert counts() == (1, 1, 1)


def test_partitions_that_cannot_shrink_do_not_keep_the_others_from_it() -> None:
    scene = Scene(isr=[1, 2, 3])
    replicas = scene.replicas
    pending = replicas.lead(index=1, replicas=[1, 2, 3])
    following = replicas.follow(2, index=2, replicas=[1, 2, 3])
    lagging = replicas.lead(index=3, replicas=[1, 2, 3])
    pending.pending_isr = frozenset({1, 2})
    for index in (1, 3):
        replicas.append(1, index=index)
    replicas.clock.advance(10_001)
    run_at_once(scene.manager.maybe_shrink([pending, following, lagging]))
    assert [each.partition for each, _ in scene.controller.proposals] == [lagging]


def test_a_decision_about_an_older_state_is_ignored() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    _, decided = scene.controller.proposals.pop(0)
    scene.partition.partition_epoch = 5
    decided(IsrDecision(0, [1, 2], 4, 4))
    assert (scene.partition.isr, scene.partition.partition_epoch) == ({1}, 5)
    decided(IsrDecision(0, [1, 2], 4, 5))  # nothing changed: the response to a repeated request
    assert (scene.partition.isr, scene.partition.partition_epoch) == ({1, 2}, 5)


def test_a_proposal_of_an_earlier_epoch_is_not_decided_by_an_equal_one() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    _, decided = scene.controller.proposals.pop(0)
    scene.replicas.order(1, epoch=5, replicas=[1, 2, 3], isr=[1], partition_epoch=3)
    scene.fetch(2, 0)
    scene.fetch(2, 0)
    decided(IsrDecision(0, [1, 2], 5, 4))
    assert scene.partition.isr == {1}, "that was not the response to this proposal"


def test_expansions_are_logged_in_detail_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "ottla.replication")
    scene = Scene(isr=[3, 1])
    scene.fetch(2, 0)
    assert "[Partition t-0] Expanding ISR from 1,3 to 1,2,3" in caplog.text


def test_one_line_for_all_that_shrink(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ottla.replication")
    scene = Scene(isr=[1, 2, 3])
    others = [
        scene.replicas.lead(index=each, replicas=[1, 2, 3], isr=[1, 2]) for each in range(1, 50)
    ]
    for partition in others:
        scene.replicas.append(1, index=partition.index)
    scene.replicas.append(1)
    scene.replicas.clock.advance(10_001)
    run_at_once(scene.manager.maybe_shrink([scene.partition, *others]))
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "INFO"]
    assert line.startswith(
        "Shrinking the ISRs of 50 partitions, replicas out of sync for more than 10000 ms: "
        "t-0 from 1,2,3 to 1, t-1 from 1,2 to 1, "
    )
    assert line.endswith(" ... and 30 more")


def test_a_decision_after_the_leader_stepped_down_is_ignored() -> None:
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.partition.resign()
    scene.controller.agree()
    assert scene.partition.isr == {1}


def test_a_replica_that_the_controller_refuses_is_not_waited_for() -> None:
    """A broker that is shutting down still fetches for a while."""
    scene = Scene(isr=[1])
    scene.fetch(2, 0)
    scene.controller.refuse(ErrorCode.INELIGIBLE_REPLICA)
    scene.replicas.append(1)
    assert scene.replicas.log().high_watermark == 1
