"""Text that came from outside, fit for a line of a log or of a terminal.

Names in requests, errors of peers and data of records may hold line ends that forge lines and
escape sequences that control a terminal. Everything that is written for people goes through here.
"""

from __future__ import annotations

import re

# C0 and C1 controls, line and paragraph separators, marks that change the direction of text, and
# surrogates, which no encoding takes.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNPRINTABLE_IN_LINES = re.compile(_UNPRINTABLE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """One line: control characters as `\\n`, `\\x1b` or `\\u202e`. Other text is unchanged."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """As `printable`, but line ends and tabs stay."""
    return text if text.isprintable() else _UNPRINTABLE_IN_LINES.sub(_escaped, text)


def printable_json(document: str) -> str:
    """A JSON document without characters that control a terminal; it means the same."""
    if document.isprintable():
        return document
    # Line ends are between values here: JSON escapes those within them.
    return _UNPRINTABLE_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
