"""A short story of the compose file, where a container engine responds.

`make test-compose` has the long ones, and starts an engine where there is none.
"""

from __future__ import annotations

import os

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
