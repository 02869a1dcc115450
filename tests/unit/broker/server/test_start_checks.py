"""What a start checks first, apart from processes: tests/integration/test_failed_starts.py."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError, ConfigErrors
from ottla.broker.config.workers import WorkerPlace
from ottla.broker.server import start_checks
from ottla.broker.server.start_checks import (
    CertificateExpired,
    DirectoryUnwritable,
    WrongOwner,
    check_certificates,
    check_distinct_directories,
    check_rights,
    warn_of_root,
)
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.certificates import Certificates


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        *(("lost+found", False), ("notes.txt", False), (".snapshot", False)),
        *(("meta.properties", True), (".lock", True), ("recovery-point-offset-checkpoint", True)),
        *(("orders-0", True), ("orders-0.0123abcd-delete", True), ("ottla-znodes.db-wal", True)),
    ],
)
def test_files_of_others_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_ours: bool
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(start_checks, "_may_use", lambda path: not path.endswith(name))
    if not is_ours:
        check_rights([str(tmp_path)])
        return
    with pytest.raises(DirectoryUnwritable, match=r"Permission denied: .*chmod -R"):
        check_rights([str(tmp_path)])
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(WrongOwner, match=r"chown -R 4711 "):
        check_rights([str(tmp_path)])


def test_the_problems_of_two_directories_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        start_checks, "_problem", lambda path: DirectoryUnwritable(f"{path} is bad: mend it.")
    )
    with pytest.raises(DirectoryUnwritable, match=r"^/a is bad: mend it\. /b is bad: mend it\.$"):
        check_rights(["/a", "/b"])


def test_root_in_a_directory_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.stat
    owner = 4711

    def stat(path: str, **options: Any) -> Any:
        found = real(path, **options)
        return SimpleNamespace(st_uid=owner) if path == str(tmp_path) else found

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    paths = [str(tmp_path), str(tmp_path / "new")]
    warn_of_root(paths)
    (line,) = caplog.messages
    assert f"log directory {tmp_path} belongs to user 4711" in line
    assert f"`chown -R 4711 {tmp_path}`" in line
    caplog.clear()
    owner = 0
    warn_of_root(paths)
    owner = 4711
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    warn_of_root(paths)
    assert caplog.messages == []


def test_one_log_that_cannot_be_used_is_no_reason_not_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replica is offline. All logs that cannot be used are those of another user."""
    (tmp_path / "orders-0").symlink_to(tmp_path / "nowhere")
    check_rights([str(tmp_path)])
    (tmp_path / "orders-1").mkdir()
    (tmp_path / "orders-2").mkdir()
    denied = {"orders-1"}
    monkeypatch.setattr(start_checks, "_may_use", lambda path: Path(path).name not in denied)
    check_rights([str(tmp_path)])
    denied |= {"orders-0", "orders-2"}
    with pytest.raises(DirectoryUnwritable, match=r"Permission denied: .*orders-"):
        check_rights([str(tmp_path)])


def test_one_directory_that_can_be_used_is_enough(tmp_path: Path) -> None:
    check_rights(["/dev/null/x", str(tmp_path / "new" / "data")])
    with pytest.raises(DirectoryUnwritable, match="/dev/null is not a directory"):
        check_rights(["/dev/null/x", "/dev/null/y"])


def _listeners(certificates: Certificates, **more: str) -> BrokerConfig:
    return BrokerConfig(
        {
            "zookeeper.connect": "localhost:2181",
            "listeners": "PLAINTEXT://:9092,A://:9093,B://:9094",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:SSL,B:SSL",
            "inter.broker.listener.name": "A",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.server_path),
            "advertised.listeners": "PLAINTEXT://h:9092,A://h:9093",
            **{name.replace("_", "."): text for name, text in more.items()},
        }
    )


def test_the_certificates_of_all_listeners_are_reported(tmp_path: Path) -> None:
    missing = {"listener_name_b_ssl_keystore_location": str(tmp_path / "missing")}
    with pytest.raises(ConfigErrors) as raised:
        check_certificates(_listeners(Certificates(tmp_path), **missing), now=4e9)
    first, second = raised.value.errors
    assert isinstance(first, CertificateExpired)
    assert "the certificate of listener A" in str(first)
    assert str(tmp_path / "missing") in str(second)


def test_an_old_certificate_of_another_listener_stops_no_start(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    check_certificates(_listeners(certificates, inter_broker_listener_name="PLAINTEXT"), now=4e9)
    alone = _listeners(certificates, zookeeper_connect="")
    check_certificates(alone, now=4e9)
    # Workers of one machine are brokers of a cluster, also without ZooKeeper.
    worker = alone.for_worker({}, WorkerPlace(0, 2, "here", "/run", {}, None))
    with pytest.raises(CertificateExpired, match="the certificate of listener A"):
        check_certificates(worker, now=4e9)


def test_a_message_names_some_of_many_topics_with_tiered_storage() -> None:
    topics = [f"t{each}" for each in range(8)]
    with pytest.raises(ConfigError, match="for the topics t0, t1, t2, t3, t4 and 3 others: "):
        start_checks.check_tiered_topics(BrokerConfig(), topics)


@pytest.mark.parametrize("setting", ["log.dirs", "log.dir"])
def test_directories_that_overlap_are_named_with_their_setting(
    tmp_path: Path, setting: str
) -> None:
    def check(store: Path) -> None:
        paths = f"{tmp_path}/a,{tmp_path}/b"
        config = BrokerConfig({setting: paths, "rsm.config.storage.root": str(store)})
        check_distinct_directories(config, LogManager(config.log_directories()))

    check(tmp_path / "store")
    store = tmp_path / "a" / "tier-1"
    with pytest.raises(ConfigError, match=rf"^{setting}: {store}, the directory of the remote"):
        check(store)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ConfigError, match=rf"^{setting}: {tmp_path}/a and {tmp_path}/b are one"):
        check(tmp_path / "store")
