"""Exit codes of `ottla start`: each mistake has its own, and the documentation has them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.broker.cluster.identity import StartError
from ottla.broker.config.errors import (
    AdvertisedAddressError,
    ConfigError,
    ConfigErrors,
    UnknownSetting,
)
from ottla.broker.config.exit_codes import EXIT_CODES, exit_code
from ottla.broker.net.listener import ListenError, PortInUse
from ottla.broker.server import start_checks
from ottla.controller.registration import (
    AdvertisedAddressTaken,
    BrokerIdTaken,
    InconsistentClusterId,
)
from ottla.controller.tree.store import StoreError, ZooKeeperUnreachable
from ottla.storage.errors import DirectoryInUse

PAGE = Path(__file__).resolve().parents[4] / "docs" / "operations.md"
UNKNOWN, ADVERTISED = UnknownSetting("a"), AdvertisedAddressError("b")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PortInUse(""), 10),
        (DirectoryInUse(""), 11),
        (start_checks.DirectoryUnwritable(""), 12),
        (start_checks.DirectoryFull(""), 13),
        (start_checks.WrongOwner(""), 14),
        (InconsistentClusterId(""), 15),
        (ZooKeeperUnreachable(""), 16),
        (UNKNOWN, 17),
        (ADVERTISED, 18),
        (start_checks.CertificateExpired(""), 19),
        (BrokerIdTaken(""), 20),
        (AdvertisedAddressTaken(""), 21),
        (ConfigErrors([UNKNOWN, UnknownSetting("c")]), 17),
        (ConfigErrors([UNKNOWN, ADVERTISED]), 2),
        (ConfigError(""), 2),
        (ListenError(""), 1),
        (StartError(""), 1),
        (StoreError(""), 1),
        (RuntimeError(""), 1),
    ],
)
def test_exit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_the_documentation_has_every_code() -> None:
    text = PAGE.read_text()
    table = text[text.index("### Exit codes") :].partition("\n## ")[0]
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert documented == {0, 1, *EXIT_CODES.values()}
