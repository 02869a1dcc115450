"""Upper and lower case as `String.toUpperCase(Locale.ENGLISH)` and its counterpart write them."""

from __future__ import annotations

_SIGMA = "Σ"
# Beside these Java and Python agree on which form a sigma has. Elsewhere Java looks for the
# borders of words, which Python has no data of.
_SEPARATORS = frozenset(' ,=@;#<>+"\\')


class UnclearCase(ValueError):
    """Java may write another text."""


def changed_case(text: str, case: str) -> str:
    """`case` is L for lower, U for upper, or empty. Raises UnclearCase."""
    if case == "U":
        return text.upper()
    if case != "L":
        return text
    if _SIGMA in text:
        padded = f" {text} "
        for index, character in enumerate(padded):
            if character == _SIGMA and not (
                _is_clear(padded[index - 1]) and _is_clear(padded[index + 1])
            ):
                raise UnclearCase(f"the lower case of {text!r:.100} is not certain")
    return text.lower()


def _is_clear(character: str) -> bool:
    return character in _SEPARATORS or character.lower() != character.upper()
