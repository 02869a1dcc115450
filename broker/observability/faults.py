"""The faults that a broker reports of itself, each with its fix.

Health checks, metrics, `ottla doctor`, the console and the log all have these texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ottla.controller.election import HOW_TO_LEAVE
from ottla.controller.tree import znodes
from ottla.protocol.listed import listed

if TYPE_CHECKING:
    from ottla.broker.config.dynamic_rules import IgnoredSetting
    from ottla.broker.config.unusable_znodes import UnusableZnode
    from ottla.broker.metrics.loop_stalls import Turn
    from ottla.broker.net.descriptors import Descriptors
    from ottla.broker.security.tls.certificate_dates import CertificateDates
    from ottla.controller.tree.tree_file import WriteProblem
    from ottla.storage.files.log_directory import LogDirectory

FULL = "log-directory-full"
OFFLINE = "log-directory-offline"
ZOOKEEPER = "zookeeper-disconnected"
ZNODE_FILE = "znode-file-unwritable"
NO_CONTROLLER = "no-controller"
UNREACHABLE = "controller-cannot-reach"
EXPIRED = "certificate-expired"
EXPIRING = "certificate-expiring"
NOT_YET_VALID = "certificate-not-yet-valid"
REJECTED_CERTIFICATE = "certificate-renewal-rejected"
UNUSABLE_CERTIFICATE = "certificate-of-another-key"
INCOMPLETE_CERTIFICATE = "certificate-without-issuer"
DESCRIPTORS_USED_UP = "descriptors-used-up"
DESCRIPTORS_LOW = "descriptors-low"
LOOP_BLOCKED = "event-loop-blocked"
REMOTE_STORAGE = "remote-storage-failing"
SET_ASIDE = "records-set-aside"
OLDER_TREE = "zookeeper-older-copy"
LEADER_EPOCHS = "leader-epochs-behind"
HELD_LOG = "log-not-served"
TOPIC_ZNODE = "topic-znode-unusable"
ID_TAKEN = "broker-id-taken"
KRAFT = "kraft-migration"
DELETION_WAITS = "topic-deletion-waits"
SECURITY_ZNODE = "security-znode-unusable"
DYNAMIC_SETTING = "dynamic-setting-ignored"

#: Every fault, in the order in which they are reported.
FAULTS = (
    *(OFFLINE, FULL, ZOOKEEPER, ZNODE_FILE, NO_CONTROLLER, UNREACHABLE),
    *(EXPIRED, EXPIRING),
    *(NOT_YET_VALID, REJECTED_CERTIFICATE, UNUSABLE_CERTIFICATE, INCOMPLETE_CERTIFICATE),
    *(DESCRIPTORS_USED_UP, DESCRIPTORS_LOW, LOOP_BLOCKED, REMOTE_STORAGE, SET_ASIDE),
    *(OLDER_TREE, LEADER_EPOCHS, HELD_LOG, TOPIC_ZNODE, SECURITY_ZNODE, DYNAMIC_SETTING),
    *(ID_TAKEN, KRAFT, DELETION_WAITS),
)

#: With them Kafka would start on the same directories and znodes without records or changes that
#: are there, or not at all.
STAND_IN_THE_WAY = frozenset(
    (OFFLINE, FULL, ZOOKEEPER, ZNODE_FILE, NO_CONTROLLER, UNREACHABLE, REMOTE_STORAGE, SET_ASIDE)
    + (OLDER_TREE, LEADER_EPOCHS, HELD_LOG, TOPIC_ZNODE, SECURITY_ZNODE, ID_TAKEN, KRAFT)
    + (DELETION_WAITS,)
)

# Time enough to get a new certificate, in an organisation with a process for it.
EXPIRING_DAYS = 14

# Of a log directory; the command lists all.
_NAMED_SET_ASIDE_MAX = 3
_NAME_CHARACTERS_MAX = 60

# Clients notice a broker that does not respond for so long: some of them retry.
COMPUTED_SECONDS = 1.0
BLOCKED_SECONDS = 5.0

_DAY_SECONDS = 86_400

# Of faults that may be those of each partition: the log names the others.
_LISTED_MAX = 20


class Fault(NamedTuple):
    """`name` is one of `FAULTS`; `stops`: because of it clients should not come."""

    name: str
    subject: str
    stops: bool
    problem: str
    fix: str


def directory_faults(directories: Sequence[LogDirectory]) -> list[Fault]:
    """Directories that take no records. They stop clients when all of them do."""
    stops = all(each.append_error is not None for each in directories)
    found = []
    for each in directories:
        if each.append_error is None:
            continue
        fix = (
            "repair the disk (mount it read-write if it is read-only) or replace it, then restart "
            "the broker"
            if each.is_offline
            else "free disk space (delete topics, shorten retention.ms), enlarge the disk or raise "
            "its quota; no restart is needed"
        )
        found.append(
            Fault(
                OFFLINE if each.is_offline else FULL,
                each.path,
                stops,
                f"log directory {each.path} accepts no records: {each.append_error_reason}",
                fix,
            )
        )
    return found


def missing_directory_faults(paths: Sequence[str]) -> list[Fault]:
    """Log directories of the last start that are not there; over at the start after an orderly
    stop."""
    return [
        Fault(
            OFFLINE,
            path,
            False,
            f"log directory {path} of the last start is missing: partitions that have no other log "
            "began empty on this broker",
            "if its disk was not replaced on purpose, stop the broker, mount the disk or name the "
            "directory in log.dirs, and start the broker; otherwise a restart ends this fault",
        )
        for path in paths
    ]


def zookeeper_fault() -> Fault:
    """The session with ZooKeeper is not connected."""
    return Fault(
        ZOOKEEPER,
        "",
        False,
        "ZooKeeper is not connected: topics, settings and leaders do not change until it is",
        "start ZooKeeper, or repair the network between it and this broker (zookeeper.connect)",
    )


def znode_file_fault(found: WriteProblem) -> Fault:
    """The file of the znode tree, of a broker without ZooKeeper, cannot be written."""
    return Fault(
        ZNODE_FILE,
        "",
        False,
        f"{found.problem}: topics, settings and leaders do not change until it can",
        found.fix,
    )


def controller_fault() -> Fault:
    """The metadata of this broker has no controller."""
    return Fault(
        NO_CONTROLLER,
        "",
        False,
        "the cluster has no controller: no leader is elected and no topic is created",
        "check that the brokers reach ZooKeeper; if a znode cannot be used, the line `The znode "
        "store failed` in their logs names it, and what to write",
    )


def unreachable_fault(controller_id: int, address: str) -> Fault:
    """The controller is another broker, and none of its requests has reached this one, which is
    registered at `address`."""
    return Fault(
        UNREACHABLE,
        "",
        False,
        f"the controller, broker {controller_id}, has not reached this broker, which is registered "
        f"at {address}: this broker leads no partition and knows no topic",
        "set advertised.listeners to a name and port that the other brokers resolve and reach, and "
        f"restart this broker; the log of broker {controller_id} has the error. If there is no "
        f"broker {controller_id} any more, delete the znode {znodes.CONTROLLER}",
    )


def certificate_faults(
    certificates: Mapping[str, CertificateDates], now: float, listeners: int
) -> list[Fault]:
    """Certificates that have expired or do so soon, that are not valid yet or cannot be used, and
    newer ones that are not used; `listeners` is how many the broker has.

    Clients are stopped when no listener has a valid certificate.
    """
    unusable = [
        name
        for name, dates in certificates.items()
        if dates.has_expired(now) or dates.is_early(now) or dates.unusable
    ]
    none_is_usable = len(unusable) == listeners
    return [
        fault
        for name, dates in certificates.items()
        for fault in _faults_of(name, dates, now, none_is_usable)
    ]


def _faults_of(
    name: str, dates: CertificateDates, now: float, none_is_usable: bool
) -> Iterator[Fault]:
    subject = f"the certificate of listener {name}"
    valid = f"(valid {dates.text()})"
    fix = (
        f"put a new certificate into the key store of listener {name} (ssl.keystore.location);"
        " the broker loads it without a restart"
    )
    if dates.has_expired(now):
        text = f"{subject} expired {_ago(now - dates.not_after)} ago {valid}"
        yield Fault(EXPIRED, name, none_is_usable, text, fix)
    elif dates.not_after - now < EXPIRING_DAYS * _DAY_SECONDS:
        text = f"{subject} expires in {_ago(dates.not_after - now)} {valid}"
        yield Fault(EXPIRING, name, False, text, fix)
    if dates.is_early(now):
        text = f"{subject} is not valid yet, but in {_ago(dates.not_before - now)} {valid}"
        yield Fault(NOT_YET_VALID, name, none_is_usable, text, fix)
    if dates.rejected:
        text = f"listener {name} keeps its previous certificate: {dates.rejected}"
        yield Fault(REJECTED_CERTIFICATE, name, False, text, fix)
    if dates.unusable:
        text = f"no client can connect to listener {name}: {dates.unusable}"
        yield Fault(UNUSABLE_CERTIFICATE, name, none_is_usable, text, fix)
    if dates.incomplete:
        text = f"clients may reject {subject} {valid}: {dates.incomplete}"
        append = "append the certificate of its issuer to the key store, also that of a root"
        yield Fault(INCOMPLETE_CERTIFICATE, name, False, text, f"{append}; no restart is needed")


def _ago(seconds: float) -> str:
    days = int(seconds // _DAY_SECONDS)
    return f"{days} days" if days >= 2 else f"{int(seconds // 3600)} hours"


def descriptor_fault(descriptors: Descriptors) -> Fault | None:
    """Few or no descriptors are left for clients."""
    used, limit, reserved, _ = descriptors
    if not descriptors.are_nearly_used_up:
        return None
    text = f"{used} of {limit} file descriptors are in use ({reserved} are reserved for the broker)"
    fix = (
        "raise the limit of open files (ulimit -n, LimitNOFILE= of the systemd unit) or lower "
        "max.connections"
    )
    if descriptors.are_used_up:
        text += ": connections of clients are refused"
        return Fault(DESCRIPTORS_USED_UP, "", True, text, fix)
    return Fault(DESCRIPTORS_LOW, "", False, text, fix)


def loop_fault(longest: Turn | None) -> Fault | None:
    """The event loop served no client for a while."""
    if longest is None:
        return None
    if longest.computed_seconds < COMPUTED_SECONDS and longest.seconds < BLOCKED_SECONDS:
        return None
    return Fault(
        LOOP_BLOCKED,
        longest.name,
        False,
        f"in the last minute {longest.name} blocked the event loop for {longest.seconds:.1f} s"
        f" ({longest.computed_seconds:.1f} s of computing)",
        "give the broker more processor time if it computed for less than that, else report the"
        " line of the log with the stack",
    )


def remote_storage_fault(problem: str | None) -> Fault | None:
    """`problem`: what fails in remote storage now (KIP-405)."""
    if problem is None:
        return None
    return Fault(
        REMOTE_STORAGE,
        "",
        False,
        "remote storage fails, and segments stay on the local disks until they are copied: "
        f"{problem}",
        "check that the store is reachable and its credentials (rsm.config.*); the broker retries, "
        "no restart is needed",
    )


def set_aside_faults(directories: Sequence[LogDirectory]) -> list[Fault]:
    """Records that were set aside without two facts that agree; one fault a log directory."""
    found = []
    for each in directories:
        items = [item for item in each.set_aside if item.needs_attention]
        if not items:
            continue
        reasons: dict[str, dict[str, None]] = {}
        for item in items:
            reasons.setdefault(f"{item.topic}-{item.partition}", {})[item.reason.value] = None
        named = ", ".join(
            f"{name[:_NAME_CHARACTERS_MAX]} ({', '.join(list(why)[:_NAMED_SET_ASIDE_MAX])})"
            for name, why in list(reasons.items())[:_NAMED_SET_ASIDE_MAX]
        )
        more = len(reasons) - _NAMED_SET_ASIDE_MAX
        found.append(
            Fault(
                SET_ASIDE,
                each.path,
                False,
                f"records in {each.path} are set aside (items: {len(items)}) and are not served;"
                f" they may have no other copy: {named}"
                + (f" and {more} more partitions" if more > 0 else ""),
                f"see why with `ottla log set-aside list {each.path}`, then restore or discard them"
                " with `ottla log set-aside restore` or `discard`",
            )
        )
    return found


def deletion_faults(topics: Mapping[str, str]) -> list[Fault]:
    """The reason why the deletion of a topic waits, by topic."""
    return [
        Fault(
            DELETION_WAITS,
            topic,
            False,
            f"topic {topic} is marked for deletion, which waits for {reason}",
            "start it; if it is lost for good, start one with its broker.id and empty log.dirs",
        )
        for topic, reason in list(topics.items())[:_LISTED_MAX]
    ]


def broker_id_fault(problem: str) -> Fault | None:
    """`problem`: another broker is registered with the id of this one; empty otherwise."""
    if not problem:
        return None
    return Fault(
        ID_TAKEN,
        "",
        True,
        f"{problem}: this one has left service",
        "stop one of the two; this broker registers again when the other one is gone",
    )


def kraft_fault(problem: str) -> Fault | None:
    """`problem`: a KRaft controller has taken over the cluster; empty otherwise."""
    if not problem:
        return None
    return Fault(KRAFT, "", True, f"{problem}: this broker has left service", HOW_TO_LEAVE)


def older_tree_fault(newer_zxid: int) -> Fault | None:
    """`newer_zxid`: one that this broker has seen in the same tree before, if it is newer than its
    registration; negative otherwise."""
    if newer_zxid < 0:
        return None
    return Fault(
        OLDER_TREE,
        "",
        False,
        f"ZooKeeper is an older copy of itself: this broker has seen its zxid {newer_zxid}. "
        "Topics, settings and leaders since then are missing; no log is set aside meanwhile",
        "check zookeeper.connect, and start ZooKeeper with its newest data; if it was restored on "
        "purpose, stop the broker, remove ottla-zookeeper-zxid from its log directories, start it",
    )


def leader_epoch_fault(partitions: Sequence[str]) -> Fault | None:
    """`partitions` have a higher leader epoch here than in ZooKeeper."""
    if not partitions:
        return None
    return Fault(
        LEADER_EPOCHS,
        "",
        False,
        f"replicas of {len(partitions)} partitions are ahead of ZooKeeper, which was restored from "
        f"an older copy, and do not work: {listed(partitions)}",
        "start all brokers that have replicas of them: the controller elects the one with the "
        "newest records then. If a broker is lost, take it out of the partitions with `ottla "
        "partitions reassign`. If only a minority of the replicas is ahead, it was connected to a "
        "wrong ZooKeeper: stop its broker and move these logs away",
    )


def _log_faults(
    logs: Iterable[tuple[str, str, str]], count: int, problem_of_others: str
) -> list[Fault]:
    """A fault for each of the first of `count` logs, (path, problem, fix), and one for the others
    together."""
    found = [
        Fault(HELD_LOG, path, False, f"log {path} {problem}", fix)
        for path, problem, fix in islice(logs, _LISTED_MAX)
    ]
    if count > _LISTED_MAX:
        text = f"{count - _LISTED_MAX} more logs{problem_of_others}"
        found.append(Fault(HELD_LOG, "", False, text, found[0].fix))
    return found


def held_log_faults(logs: Sequence[tuple[str, str, str]]) -> list[Fault]:
    """`logs` are (path, problem, fix) of the logs that ZooKeeper does not give to this broker,
    without a second fact that says the same."""
    what = "kept and not served"
    rows = ((path, f"is {what}: {problem}", fix) for path, problem, fix in logs)
    return _log_faults(rows, len(logs), f" are {what}; the log of the broker names them")


def missing_log_faults(paths: Sequence[str]) -> list[Fault]:
    """The logs at `paths` were missing and began empty on the broker that leads them; over at the
    next start."""
    fix = (
        "if the directory was deleted or moved by mistake, stop the broker, put it back and start "
        "the broker; otherwise a restart ends this fault"
    )
    rows = ((path, "was missing and began empty", fix) for path in paths)
    others = " were missing and began empty; the log of the broker names them"
    return _log_faults(rows, len(paths), others)


def gone_log_faults(paths: Sequence[str]) -> list[Fault]:
    """The directories of the logs at `paths` were deleted or moved under the running broker."""
    fix = (
        "stop the broker, put the directory back and start the broker. Started without it, the "
        "broker copies the log from the leader, or begins empty if no other replica is in sync"
    )
    problem = "was deleted or moved while the broker ran: its replica is offline"
    others = f", which the log of the broker names: each {problem}"
    return _log_faults(((path, problem, fix) for path in paths), len(paths), others)


def unusable_log_faults(logs: Mapping[str, str]) -> list[Fault]:
    """(reason) by path of the logs that the start could not open because of one of their files."""
    fix = (
        "repair the file or its rights, or mount the disk that has it, or move the directory away "
        "if its records are lost; then restart the broker"
    )
    rows = ((path, f"cannot be opened: {reason}", fix) for path, reason in sorted(logs.items()))
    others = ", which the log of the broker names, cannot be opened"
    return _log_faults(rows, len(logs), others)


def topic_znode_faults(topics: Mapping[str, tuple[str, str]]) -> list[Fault]:
    """(problem, fix) by topic: the controller cannot use their znodes."""
    return [
        Fault(TOPIC_ZNODE, topic, False, problem, fix)
        for topic, (problem, fix) in list(topics.items())[:_LISTED_MAX]
    ]


def security_znode_faults(unusable: Mapping[str, UnusableZnode], total: int) -> list[Fault]:
    """By path: ACLs, quotas, credentials, tokens and settings of topics that cannot be read, and
    what applies instead.

    `total`: how many there are, which may be more than are given.
    """
    found = [
        Fault(
            SECURITY_ZNODE,
            path,
            False,
            f"{each.problem}; {each.effect} until it is repaired",
            f"restore {path} from a backup, or delete the znode and set what it had again; the "
            "broker reads it again every few seconds",
        )
        for path, each in list(unusable.items())[:_LISTED_MAX]
    ]
    if total > len(found) > 0:
        text = f"{total - len(found)} more znodes cannot be used; the log names them"
        found.append(Fault(SECURITY_ZNODE, "", False, text, found[0].fix))
    return found


def dynamic_setting_faults(ignored: Sequence[IgnoredSetting], broker_id: int) -> list[Fault]:
    """Settings below /config/brokers that are not used."""
    found = []
    for name, per_broker, problem in ignored[:_LISTED_MAX]:
        where = f"broker {broker_id}" if per_broker else "cluster"
        path = znodes.config_path(
            f"{znodes.ENTITY_BROKERS}/{broker_id if per_broker else znodes.DEFAULT_ENTITY}"
        )
        found.append(
            Fault(
                DYNAMIC_SETTING,
                f"{where} {name}",
                False,
                f"the setting {name} in {path} is ignored: {problem}",
                f"set it to another value, or remove it with `ottla configs unset {where} {name}`",
            )
        )
    return found
