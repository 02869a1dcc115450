from ottla.broker.runtime.countdown import countdown


def test_the_last_of_several_calls_back_once() -> None:
    calls: list[str] = []
    completed = countdown(2, lambda: calls.append("done"))
    completed()
    assert calls == []
    completed()
    completed()
    assert calls == ["done"]
