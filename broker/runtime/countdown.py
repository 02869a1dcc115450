"""One callback after several."""

from collections.abc import Callable


def countdown(count: int, callback: Callable[[], object]) -> Callable[[], None]:
    """A function whose call number `count` calls back."""
    left = count

    def completed() -> None:
        nonlocal left
        left -= 1
        if not left:
            callback()

    return completed
