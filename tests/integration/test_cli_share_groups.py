"""`ottla share-groups` and `ottla consume --share-group`, on a broker with share groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.share_commands import play


@pytest.fixture(scope="module")
def share_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Share groups need no setting."""
    with start_broker(tmp_path_factory.mktemp("share-groups")) as broker:
        yield broker


@pytest.fixture
def share_line(share_broker: BrokerProcess) -> CommandLine:
    return CommandLine(share_broker.bootstrap)


def test_a_group_is_read_described_reset_and_deleted(share_line: CommandLine) -> None:
    """The same commands run on Apache Kafka 4.3.1 (`python -m tests.compat.share.commands`)."""
    play(share_line)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("share-groups", "reset", "g", "t"), "choose one of --to-earliest"),
        (("share-groups", "reset", "g", "--to-earliest"), "name the topics, or --all-topics"),
        (("share-groups", "delete-offsets", "g", "t:0"), "name whole topics"),
        (("consume", "t", "--share-group", "g", "--from-beginning"), "a member of a share group"),
        (("consume", "t", "--share-group", "g", "--acknowledge", "x"), "--acknowledge x is not"),
        (("consume", "t", "--acknowledge", "reject"), "--acknowledge needs --share-group"),
        (
            ("consume", "t", "--share-group", "g", "--acknowledge", "release", "--follow"),
            "with --follow the released records would come again",
        ),
    ],
)
def test_wrong_usage_is_reported_before_any_change(
    share_line: CommandLine, arguments: tuple[str, ...], error: str
) -> None:
    outcome = share_line(*arguments)
    assert outcome.code == 2
    assert outcome.errors.startswith(f"ottla: {error}")


def test_a_broker_without_share_groups_names_the_setting(tmp_path: Path) -> None:
    with start_broker(tmp_path, group_coordinator_rebalance_protocols="classic") as broker:
        _assert_setting_is_named(CommandLine(broker.bootstrap))


def _assert_setting_is_named(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "plain")
    for arguments in (
        ("share-groups", "describe", "workers"),
        ("consume", "plain", "--share-group", "workers"),
    ):
        outcome = ottla(*arguments)
        assert outcome.code == 1
        assert "set group.coordinator.rebalance.protocols=classic,consumer,share" in outcome.errors
