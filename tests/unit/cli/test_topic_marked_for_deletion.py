"""A topic that is being deleted can neither be created nor be taken for the new one."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.topics import app
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopicResult


class Cluster:
    json = False
    timeout_ms = 1000

    def call(self, kind: type, _request: object, _to: object) -> Any:
        code, text = ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't' is marked for deletion."
        return kind(topics=[CreatableTopicResult("t", error_code=code, error_message=text)])

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("options", [[], ["--if-not-exists"]])
def test_it_is_not_created_and_the_advice_is_not_to_accept_it(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster())
    done = CliRunner().invoke(app, ["create", "t", *options])
    assert done.exit_code == 1
    assert "Topic 't' is marked for deletion (TOPIC_ALREADY_EXISTS)" in done.stderr
    assert "`ottla doctor` names what the deletion waits for" in done.stderr
    assert "--if-not-exists" not in done.stderr
