"""What a test does to a process before it becomes a program."""

from __future__ import annotations

import ctypes

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def without_the_rights_of_root() -> None:
    """In the child, before it becomes the broker: root may write anywhere, this one may not."""
    library = ctypes.CDLL(None, use_errno=True)
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        assert library.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
