"""The checks of a start before it writes anything: ports, log directories, certificates.

Each mistake has a class of its own, so that `ottla start` ends with an exit code of its own
(`broker/config/exit_codes.py`).
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ottla.broker.cluster.identity import StartError
from ottla.broker.config.errors import ConfigError, raise_all
from ottla.broker.config.sasl import enabled_mechanisms
from ottla.broker.net.listener import ListenError, SocketSettings, bind
from ottla.storage.directories.same_directory import check_distinct, check_not_a_partition
from ottla.storage.errors import OverlappingDirectories
from ottla.storage.files.log_directory import PROBE_FILE

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.listeners import Endpoint
    from ottla.storage.directories.log_manager import LogManager
    from ottla.storage.files.log_directory import LogDirectory

logger = logging.getLogger("ottla.broker")

# Maximum number of files checked per directory; usually all have the same owner.
MAX_FILES_CHECKED = 200
# Maximum number of topics that a message names.
MAX_TOPICS_NAMED = 5

# The least that a start writes: meta.properties, checkpoints, the embedded znode store.
SPACE_NEEDED_BYTES = 64 * 1024
# Logs of partitions.
_LOG = re.compile(r".+-\d+(\.[0-9a-f]+-(delete|future|stray))?")
# Checkpoints and other files of the directory, the embedded store, and logs.
_OURS = re.compile(
    r"meta\.properties|\.lock|\.kafka_cleanshutdown|.*-checkpoint|ottla-znodes\.db.*"
    rf"|ottla-log-dirs\.json|ottla-zookeeper-zxid|{_LOG.pattern}"
)
# Of a store for remote segments that is a directory.
_STORE_DIRECTORY = "storage.root"


class DirectoryUnwritable(StartError):
    """No log directory can be written."""


class WrongOwner(StartError):
    """The log directories belong to another user."""


class DirectoryFull(StartError):
    """No log directory has room for the files of a start."""


class CertificateExpired(ConfigError):
    """Other brokers would reject the certificate of the listener of brokers."""


def check_ports(config: BrokerConfig) -> None:
    """Raises PortInUse or ListenError for a listener that cannot be opened."""
    for endpoint in config.listener_endpoints():
        _check_port(endpoint)


def check_new_ports(config: BrokerConfig, present: Sequence[Endpoint]) -> None:
    """Raises ConfigError for a listener that cannot be opened beside those that are open."""
    try:
        for endpoint in config.listener_endpoints():
            if endpoint not in present:
                _check_port(endpoint)
    except ListenError as error:
        raise ConfigError(str(error)) from None


def check_new_logins(config: BrokerConfig, present: Sequence[Endpoint]) -> None:
    """Raises ConfigError for a listener whose Kerberos identity cannot be used, unless it is open
    already. Imports what Kerberos needs, and reads the keytab."""
    for endpoint in config.listener_endpoints():
        name = endpoint.listener_name
        if not endpoint.uses_sasl or endpoint in present:
            continue
        if "GSSAPI" in enabled_mechanisms(config, name):
            from ottla.broker.security.sasl.broker_login import kerberos_login

            kerberos_login(config, name)


def check_tiered_topics(config: BrokerConfig, topics: Sequence[str]) -> None:
    """Raises ConfigError for topics with tiered storage when the broker has none, as Kafka does:
    it would take the local log for all there is, and consumers would skip history."""
    if topics and not config.remote_log_storage_system_enable:
        named = ", ".join(topics[:MAX_TOPICS_NAMED])
        more = len(topics) - MAX_TOPICS_NAMED
        raise ConfigError(
            "remote.log.storage.system.enable=false, and remote.storage.enable=true for the topics"
            f" {named}{f' and {more} others' if more > 0 else ''}: delete these topics or set "
            "remote.storage.enable=false before you disable tiered storage. What is in remote"
            " storage only cannot be read then"
        )


def _check_port(endpoint: Endpoint) -> None:
    if endpoint.port:
        bind(endpoint.listener_name, endpoint.host, endpoint.port, SocketSettings()).close()


def check_distinct_directories(config: BrokerConfig, logs: LogManager) -> None:
    """Raises ConfigError when a log directory is named twice, is inside another one, or would take
    other data for a partition. Nothing of this start is on disk yet."""
    setting = "log.dirs" if config.log_dirs else "log.dir"
    paths = config.log_directories()
    prefix = config.remote_log_storage_manager_impl_prefix
    try:
        check_distinct(logs.fs, paths)
        if store := config.given.get(f"{prefix}{_STORE_DIRECTORY}"):
            check_not_a_partition(logs.fs, paths, store)
    except OverlappingDirectories as error:
        raise ConfigError(f"{setting}: {error}") from None


def check_rights(paths: Sequence[str]) -> None:
    """Raises WrongOwner or DirectoryUnwritable when no directory can be used."""
    found = [problem for path in paths for problem in [_problem(os.path.abspath(path))]]
    if any(problem is None for problem in found):
        return
    problems = [problem for problem in found if problem is not None]
    if problems:
        kind = type(problems[0])
        raise kind(" ".join(dict.fromkeys(str(problem) for problem in problems)))


def warn_of_root(paths: Sequence[str]) -> None:
    """Logs the log directories of another user when the broker runs as root: that user's broker
    could not open the files of this one."""
    if os.geteuid() != 0:
        return
    for path in paths:
        try:
            owner = os.stat(path).st_uid
        except OSError:  # it will be created, or is reported by another check
            continue
        if owner != 0:
            logger.warning(
                "The broker runs as root, and log directory %s belongs to user %d: new files are "
                "root's, and a broker of that user cannot open them. Start it as that user (User= "
                "in the systemd unit); after a start as root, run `chown -R %d %s` first",
                *(path, owner, owner, path),
            )


def _problem(path: str) -> StartError | None:
    existing = path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if _leads_nowhere(existing):
        return _dangling(existing)
    if not os.path.isdir(existing):
        return DirectoryUnwritable(f"log.dirs: {existing} is not a directory: name another one.")
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        return DirectoryUnwritable(
            f"log directory {path} cannot be written: its file system is mounted read-only. Mount "
            "it read-write, or name another directory in log.dirs."
        )
    if existing != path:
        if _may_use(existing):
            return None
        return DirectoryUnwritable(
            f"no directory of log.dirs can be written: {path} (cannot be created: Permission denied"
            f" in {existing}). The broker runs as user {os.geteuid()}: give it the right to write "
            "there, or name another directory."
        )
    of_logs: StartError | None = None
    has_usable_logs = False
    for each in (path, *_files(path)):
        is_log = each != path and _LOG.fullmatch(os.path.basename(each)) is not None
        if _may_use(each):
            has_usable_logs |= is_log
        elif not is_log:
            return _dangling(each) if _leads_nowhere(each) else _without_rights(path, each)
        elif of_logs is None and not _leads_nowhere(each):
            of_logs = _without_rights(path, each)
    # One log that cannot be used is no reason not to serve the others.
    return None if has_usable_logs else of_logs


def _without_rights(path: str, each: str) -> StartError:
    owner = os.lstat(each).st_uid
    if owner != os.geteuid():
        return WrongOwner(
            f"log directory {path} belongs to another user: the owner of {each} is user "
            f"{owner}, and the broker runs as user {os.geteuid()}, without the right to write. "
            f"Run `chown -R {os.geteuid()} {path}`, or start the broker as user {owner}."
        )
    return DirectoryUnwritable(
        f"no directory of log.dirs can be written: {path} (Permission denied: {each}). The "
        f"broker runs as user {os.geteuid()}: give it the right to write there (chmod -R u+rwX"
        f" {path}), or name another directory."
    )


def _leads_nowhere(path: str) -> bool:
    return os.path.islink(path) and not os.path.exists(path)


def _dangling(path: str) -> StartError:
    return DirectoryUnwritable(
        f"{path} is a symbolic link to {os.readlink(path)}, which is not there: mount the disk "
        "that has it, or remove the link."
    )


def _files(path: str) -> Iterator[str]:
    """What the broker writes in a log directory. Others may keep what they like there, as a file
    system does with lost+found."""
    try:
        with os.scandir(path) as entries:
            ours = (entry.path for entry in entries if _OURS.fullmatch(entry.name))
            yield from itertools.islice(ours, MAX_FILES_CHECKED)
    except OSError:
        return  # the directory itself is reported


def _may_use(path: str) -> bool:
    rights = os.R_OK | os.W_OK
    if os.path.isdir(path):
        rights |= os.X_OK
    return os.access(path, rights, effective_ids=os.access in os.supports_effective_ids)


def check_space(directories: Sequence[LogDirectory]) -> None:
    """Raises DirectoryFull when no directory has room for the files of a start."""
    full = [each.path for each in directories if _lacks_space(each)]
    if len(full) == len(directories):
        raise DirectoryFull(
            f"no space is left in {', '.join(full)}: free at least {SPACE_NEEDED_BYTES >> 10} KiB "
            "(delete files that are not the broker's, or enlarge the disk), then start again."
        )


def _lacks_space(directory: LogDirectory) -> bool:
    if directory.is_offline:
        return os.strerror(errno.ENOSPC) in directory.append_error_reason
    path = os.path.join(directory.path, PROBE_FILE)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        try:
            written = os.write(descriptor, bytes(SPACE_NEEDED_BYTES))
        finally:
            os.close(descriptor)
            os.unlink(path)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return written < SPACE_NEEDED_BYTES


def check_directories(directories: Sequence[LogDirectory]) -> None:
    """Without any directory there is nothing to start; without some of them there is."""
    check_space(directories)
    if any(not each.is_offline for each in directories):
        return
    reasons = ", ".join(f"{each.path} ({each.append_error_reason})" for each in directories)
    raise DirectoryUnwritable(
        f"no directory of log.dirs can be written: {reasons}. The broker runs as user "
        f"{os.geteuid()}: give it the right to write there, or name another directory."
    )


def check_certificates(config: BrokerConfig, now: float | None = None) -> None:
    """Raises ConfigError for keys that cannot be read, CertificateExpired for the listener of
    brokers; all of them together. `now` is in seconds since 1970.

    As in Kafka, an old certificate of another listener stops no start: it is a fault, and the
    other listeners work. A broker that is alone connects to no other; workers of one machine do.
    """
    listeners = [each.listener_name for each in config.listener_endpoints() if each.uses_tls]
    if not listeners:
        return
    from ottla.broker.security.tls.contexts import listener_context  # slow, and for TLS only

    errors: list[ConfigError] = []
    for name in listeners:
        try:
            chain = listener_context(config, name, at_start=True).chain
        except ConfigError as error:
            errors.append(error)
            continue
        if config.alone or name != config.inter_broker_listener():
            continue
        dates = None if chain is None else chain.leaf.dates
        if dates is not None and dates.has_expired(time.time() if now is None else now):
            where = config.listener_text(name, "ssl.keystore.location") or "ssl.keystore.key"
            errors.append(
                CertificateExpired(
                    f"the certificate of listener {name} ({where}) was valid {dates.text()}, and "
                    "other brokers reject it: put a new one there. If it is new, check the clock "
                    "of this machine."
                )
            )
    raise_all(errors)
