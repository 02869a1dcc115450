"""A short story of the compose file, where a container engine responds.

`make test-compose` has the long ones, and starts an engine where there is none.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compose import base_images, check, engine


def test_the_compose_file_keeps_its_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    if not engine.responds(os.environ):
        ours = {**os.environ, **engine.environment()}
        if not engine.responds(ours):
            pytest.skip("no Docker engine with compose responds: make test-compose starts one")
        for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG"):
            monkeypatch.setenv(name, ours[name])
    if reason := base_images.provide_images(["python", "zookeeper"]):
        pytest.skip(reason)
    check.build([])
    try:
        check.short_story()
    finally:
        check.remove_all()


@pytest.mark.parametrize(
    ("user", "program", "words"),
    [(1000, "/usr/bin/apt-get", "that needs root"), (0, None, "that needs Debian")],
)
def test_a_machine_without_an_engine_says_what_is_missing(
    user: int, program: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "responds", lambda variables: False)
    monkeypatch.setattr(engine.os, "geteuid", lambda: user)
    monkeypatch.setattr(engine.shutil, "which", lambda name: program)
    reason = engine.provide()
    assert reason.startswith("no Docker engine with compose responds, and none can be started")
    assert words in reason


def test_a_path_that_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(engine.Missing, match="too long a path"):
        engine.start(tmp_path / ("x" * 100))
