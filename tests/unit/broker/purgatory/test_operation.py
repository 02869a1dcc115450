from ottla.broker.purgatory.operation import DelayedOperation


class Recorded(DelayedOperation):
    """Completes on request, and records the calls."""

    def __init__(self) -> None:
        super().__init__(delay_ms=1000)
        self.events: list[str] = []

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        assert self.is_completed
        # Whatever completion sets off cannot complete it again.
        assert not self.force_complete()
        self.events.append("complete")

    def on_expiration(self) -> None:
        self.events.append("expired")


def test_it_completes_once() -> None:
    operation = Recorded()
    assert not operation.is_completed
    assert operation.force_complete()
    assert not operation.force_complete()
    operation.expire()
    assert operation.events == ["complete"]


def test_expiration_completes_and_then_calls_on_expiration() -> None:
    operation = Recorded()
    operation.expire()
    assert not operation.force_complete()
    assert operation.events == ["complete", "expired"]
