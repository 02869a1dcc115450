"""Profiles of benchmark rounds: how stacks are counted, and a real process that is sampled."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import profiles

STACKS = """\
0x7f (libc.so.6);main (cli/main.py:10);Runner.run (asyncio/runners.py:86);uv_run (core.c:4) 2
main (cli/main.py:10);Runner.run (asyncio/runners.py:86);epoll_pwait (libc.so.6) 40
Connection._receive (broker/net/connection.py:314);recv (s.c:3);recv (libc.so.6) 5
main (cli/main.py:10);decode (<decode ProduceRequest version 9>:28) 1
copy (shutil.py:1);_PyEval (ceval.c:7) 2
Thread.run (threading.py:975);Event.wait (threading.py:622);0x7f (libc.so.6) 7
"""
BUSY = """
print("started", flush=True)
def burn():
    while True:
        sum(range(1000))
burn()
"""


def test_the_innermost_frame_of_a_stack_counts() -> None:
    profile = profiles.profile_of(STACKS)
    assert profile.samples == 10
    shares = {"event loop": 0.2, "network": 0.5, "protocol": 0.1, "other": 0.2}
    assert profile.parts == shares | {profiles.SYSTEM_CALLS: 0.5}
    assert profile.functions[0] == ("`recv` in `Connection._receive`", 0.5)
    assert ("`event loop`", 0.2) in profile.functions


def test_a_row_has_a_cell_for_each_column() -> None:
    head, rule, row = profiles.table({"commits": profiles.profile_of(STACKS)}).splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert row.startswith("| commits | 10 | 50% | 10% |")


@pytest.mark.skipif(
    not profiles._executable().exists() or os.geteuid() != 0,
    reason="py-spy has no wheel for this machine, or may not trace processes",
)
def test_a_process_is_sampled_while_the_block_runs() -> None:
    busy = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    assert busy.stdout is not None
    try:
        assert busy.stdout.readline() == b"started\n"
        with profiles.sampled([busy.pid]) as found:
            time.sleep(0.5)
    finally:
        busy.kill()
        busy.communicate()
    assert found[0].functions[0][0] == "`burn`"


def test_a_process_that_cannot_be_sampled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "_executable", lambda: Path(sys.executable))
    with pytest.raises(RuntimeError, match="sampled nothing"), profiles.sampled([1]):
        pass
