"""Guards for the first append of a transaction."""

from ottla.storage.producer.verification import Verifications


def test_everything_is_allowed_when_it_is_off() -> None:
    assert Verifications(False).allows(7, None)


def test_only_the_guard_that_is_out_counts() -> None:
    verifications = Verifications(True)
    assert not verifications.allows(7, None)
    guard = verifications.begin(7, 0, 5, 100)
    assert verifications.begin(7, 0, 3, 100) is guard
    assert verifications.lowest_sequence(7) == 3
    assert verifications.allows(7, guard)
    assert not verifications.allows(8, guard)
    verifications.end(7)
    assert not verifications.allows(7, guard)
    assert verifications.lowest_sequence(7) is None
    newer = verifications.begin(7, 1, 0, 100)
    verifications.end(7, below_epoch=1)
    assert verifications.allows(7, newer)
    verifications.end(7, below_epoch=2)
    assert not verifications.allows(7, newer)


def test_a_newer_epoch_gets_a_guard_of_its_own() -> None:
    verifications = Verifications(True)
    old = verifications.begin(7, 0, 5, 100)
    new = verifications.begin(7, 1, 0, 100)
    assert new is not old
    assert not verifications.allows(7, old)
    assert verifications.begin(7, 0, 0, 100) is new
    assert verifications.lowest_sequence(7) == 0


def test_questions_expire() -> None:
    verifications = Verifications(True)
    guard = verifications.begin(7, 0, 0, 100)
    verifications.remove_expired(149, 50)
    assert verifications.allows(7, guard)
    verifications.remove_expired(150, 50)
    assert not verifications.allows(7, guard)
