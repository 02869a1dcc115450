"""Each fault: when it is reported, whether it stops clients, and its texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.dynamic_rules import IgnoredSetting
from ottla.broker.config.unusable_znodes import UnusableZnode
from ottla.broker.metrics.loop_stalls import Turn
from ottla.broker.net.descriptors import Descriptors
from ottla.broker.observability import faults
from ottla.broker.security.tls.certificate_dates import CertificateDates
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.set_aside import Reason, SetAside

DAY = 86_400.0


def test_directories_stop_clients_when_none_accepts(tmp_path: Path) -> None:
    first, second = (LogDirectory(RealFileSystem(), str(tmp_path / name)) for name in "ab")
    first.mark_full("no room")
    (full,) = faults.directory_faults([first, second])
    assert (full.name, full.subject, full.stops) == (faults.FULL, first.path, False)
    assert "free disk space" in full.fix
    second.fail(OSError(5, "Input/output error"))
    assert [each.stops for each in faults.directory_faults([first, second])] == [True, True]


@pytest.mark.parametrize(
    ("days", "name", "text"),
    [
        (15.0, None, ""),
        (13.0, faults.EXPIRING, "the certificate of listener SSL expires in 13 days"),
        (0.5, faults.EXPIRING, "the certificate of listener SSL expires in 12 hours"),
        (-3.0, faults.EXPIRED, "the certificate of listener SSL expired 3 days ago"),
    ],
)
def test_certificates(days: float, name: str | None, text: str) -> None:
    dates = {"SSL": CertificateDates(0.0, 100 * DAY)}
    found = faults.certificate_faults(dates, (100 - days) * DAY, listeners=2)
    both_dates = " (valid from 1970-01-01T00:00:00Z to 1970-04-11T00:00:00Z)"
    assert [(each.name, each.problem, each.stops) for each in found] == (
        [] if name is None else [(name, text + both_dates, False)]
    )


def test_a_key_of_another_certificate_and_a_chain_without_an_issuer() -> None:
    lasts = CertificateDates(0.0, 100 * DAY)
    dates = {"A": lasts._replace(unusable="another key"), "B": lasts._replace(incomplete="no root")}
    found = faults.certificate_faults(dates, DAY, listeners=2)
    assert [(each.name, each.subject, each.stops) for each in found] == [
        (faults.UNUSABLE_CERTIFICATE, "A", False),
        (faults.INCOMPLETE_CERTIFICATE, "B", False),
    ]
    assert "no client can connect to listener A: another key" in found[0].problem
    assert faults.certificate_faults({"A": dates["A"]}, DAY, listeners=1)[0].stops


def test_clients_stay_away_when_every_certificate_has_expired() -> None:
    dates = {"SSL": CertificateDates(0.0, 1.0), "SASL_SSL": CertificateDates(0.0, 2.0)}
    assert [each.stops for each in faults.certificate_faults(dates, 3.0, 2)] == [True, True]
    assert [each.stops for each in faults.certificate_faults(dates, 1.5, 2)] == [False, False]


@pytest.mark.parametrize(
    ("used", "name"), [(50, None), (72, faults.DESCRIPTORS_LOW), (90, faults.DESCRIPTORS_USED_UP)]
)
def test_descriptors(used: int, name: str | None) -> None:
    found = faults.descriptor_fault(Descriptors(used, 100, 10))
    assert (None if found is None else found.name) == name
    assert found is None or found.stops is (name == faults.DESCRIPTORS_USED_UP)


def test_connections_that_are_closed_for_others_do_not_keep_clients_away() -> None:
    found = faults.descriptor_fault(Descriptors(90, 100, 10, replaceable=True))
    assert found is not None
    assert (found.name, found.stops) == (faults.DESCRIPTORS_LOW, False)


@pytest.mark.parametrize(
    ("seconds", "computed", "reported"),
    [(0.9, 0.9, False), (4.0, 0.0, False), (1.2, 1.1, True), (6.0, 0.0, True)],
)
def test_the_event_loop(seconds: float, computed: float, reported: bool) -> None:
    found = faults.loop_fault(Turn(0.0, seconds, computed, "Produce"))
    assert (found is not None) is reported
    assert faults.loop_fault(None) is None


def test_every_fault_is_listed_once() -> None:
    assert len(set(faults.FAULTS)) == len(faults.FAULTS)
    for each in (faults.zookeeper_fault(), faults.controller_fault()):
        assert each.name in faults.FAULTS


def set_aside(topic: str, partition: int, *, attention: bool = True) -> SetAside:
    path = f"/data/{topic}-{partition}.stray"
    return SetAside(path, topic, partition, Reason.SECOND_COPY, "", attention, 0, None)


def test_records_that_are_set_aside_are_one_fault_of_a_directory() -> None:
    first, second = (LogDirectory(RealFileSystem(), path) for path in ("/data", "/other"))
    first.note_set_aside(set_aside("orders", number) for number in range(5000))
    second.note_set_aside([set_aside("orders", 0, attention=False)])
    (found,) = faults.set_aside_faults([first, second])
    assert (found.name, found.subject, found.stops) == (faults.SET_ASIDE, "/data", False)
    assert found.problem == (
        "records in /data are set aside (items: 5000) and are not served; they may have no other"
        " copy: orders-0 (second-copy), orders-1 (second-copy),"
        " orders-2 (second-copy) and 4997 more partitions"
    )
    assert "`ottla log set-aside list /data`" in found.fix
    first.set_aside.clear()
    first.note_set_aside([set_aside("t" * 249, 0)])
    (found,) = faults.set_aside_faults([first, second])
    assert len(found.problem) < 300


def test_a_missing_directory_is_named_and_stops_no_client() -> None:
    (fault,) = faults.missing_directory_faults(["/disk2"])
    assert (fault.name, fault.subject, fault.stops) == (faults.OFFLINE, "/disk2", False)
    assert "log directory /disk2 of the last start is missing" in fault.problem
    assert "mount the disk" in fault.fix


def test_where_zookeeper_and_the_logs_disagree() -> None:
    assert faults.older_tree_fault(-1) is None
    older = faults.older_tree_fault(42)
    assert older is not None
    assert "has seen its zxid 42" in older.problem
    assert faults.leader_epoch_fault([]) is None
    behind = faults.leader_epoch_fault(["t-0", "t-1"])
    assert behind is not None
    assert "replicas of 2 partitions are ahead of ZooKeeper" in behind.problem
    assert behind.problem.endswith("t-0, t-1")
    held = faults.held_log_faults(
        [(f"/d/t-{index}", "it is not ours", "repair it") for index in range(25)]
    )
    assert len(held) == 21
    assert held[0].problem == "log /d/t-0 is kept and not served: it is not ours"
    assert held[-1].problem.startswith("5 more logs")
    missing = faults.missing_log_faults([f"/d/t-{index}" for index in range(21)])
    assert missing[0].problem == "log /d/t-0 was missing and began empty"
    assert missing[-1].problem.startswith("1 more logs")
    gone = faults.gone_log_faults([f"/d/t-{index}" for index in range(21)])
    assert gone[0].problem.startswith("log /d/t-0 was deleted or moved while the broker ran")
    assert gone[-1].problem.startswith("1 more logs, which the log of the broker names: each was")
    unusable = faults.unusable_log_faults({f"/d/t-{n}": "0.log: not there" for n in range(21)})
    assert unusable[0].problem == "log /d/t-0 cannot be opened: 0.log: not there"
    assert unusable[-1].problem.startswith("1 more logs, which the log of the broker names, cannot")
    missing += gone + unusable
    (topic,) = faults.topic_znode_faults({"t": ("it cannot be read", "write it again")})
    assert (topic.subject, topic.fix) == ("t", "write it again")
    assert not any(each.stops for each in (older, behind, *held, *missing, topic))
    assert {each.name for each in (older, behind, *held, *missing, topic)} <= set(faults.FAULTS)


def test_znodes_that_protect_and_cannot_be_used() -> None:
    unusable = {f"/kafka-acl/Topic/{n}": UnusableZnode(f"{n} is garbage", "n") for n in range(22)}
    found = faults.security_znode_faults(unusable, len(unusable))
    assert found[0].subject == "/kafka-acl/Topic/0"
    assert found[0].problem == "0 is garbage; n until it is repaired"
    assert "/kafka-acl/Topic/0" in found[0].fix
    assert found[-1].problem.startswith("2 more")
    assert len(found) == 21


def test_dynamic_settings_that_are_ignored() -> None:
    ignored = [IgnoredSetting("a.b", True, "why"), IgnoredSetting("c.d", False, "why")]
    one, every = faults.dynamic_setting_faults(ignored, 7)
    assert one.problem == "the setting a.b in /config/brokers/7 is ignored: why"
    assert one.fix.endswith("`ottla configs unset broker 7 a.b`")
    assert "/config/brokers/<default>" in every.problem
    assert every.fix.endswith("`ottla configs unset cluster c.d`")
