"""ZooKeeper's own settings file for `ottla zookeeper`: what it means here, and what is refused."""

from __future__ import annotations

import os
from typing import NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.properties_file import read_properties

# What ZooKeeper writes its snapshots and transaction logs into, below dataDir and dataLogDir.
_DATA_OF_ZOOKEEPER = "version-2"

#: Option of the command by setting of the file.
_OPTIONS = {
    "dataDir": "data_dir",
    "clientPort": "port",
    "clientPortAddress": "host",
    "tickTime": "tick_time_ms",
}
# A server without them would be open where the one of the file is not.
_GUARDS = {
    "secureClientPort": "TLS is not supported",
    "requireClientAuthScheme": "SASL is not supported",
    "sessionRequireClientSASLAuth": "SASL is not supported",
    "enforce.auth.enabled": "SASL is not supported",
}
_GUARD_PREFIXES = {"authProvider.": "SASL and certificates are not supported"}
_APACHE = "start Apache ZooKeeper with this file, or another file here"
# Set in Kafka's file, and as here: no limit of connections for an address, and no HTTP server.
_SAME_HERE = {"maxClientCnxns": "0", "admin.enableServer": "false"}


class Settings(NamedTuple):
    """The texts of options by their names, and the settings that have no effect."""

    options: dict[str, str]
    ignored: list[str]


def read_settings(path: str) -> Settings:
    """The file as `zookeeper-server-start.sh` takes it.

    Raises ConfigError for a file that cannot be read, an ensemble, and what keeps clients out.
    """
    options: dict[str, str] = {}
    ignored: dict[str, None] = {}
    for name, text, origin in read_properties(path):
        value = text.strip()
        if name.startswith(("server.", "group.", "weight.")):
            raise ConfigError(
                f"{origin}: {name} belongs to an ensemble, and `ottla zookeeper` is one server: "
                f"{_APACHE}."
            )
        prefixed = (why for prefix, why in _GUARD_PREFIXES.items() if name.startswith(prefix))
        guard = _GUARDS.get(name) or next(prefixed, None)
        if guard is not None and value.lower() != "false":
            raise ConfigError(f"{origin}: {name}: {guard}: {_APACHE}.")
        if name in _OPTIONS:
            options[_OPTIONS[name]] = value
        elif guard is None and _SAME_HERE.get(name) != value:
            ignored[name] = None
    return Settings(options, list(ignored))


def check_no_other_data(directory: str, own_file: str) -> None:
    """Raise ConfigError for a data directory of Apache ZooKeeper: a server that begins with an
    empty tree beside it would be taken for the same cluster."""
    if os.path.exists(os.path.join(directory, own_file)):
        return
    other = os.path.join(directory, _DATA_OF_ZOOKEEPER)
    try:
        names = os.listdir(other)
    except OSError:
        return
    if names:
        raise ConfigError(
            f"{other} has the data of Apache ZooKeeper, which `ottla zookeeper` does not read: "
            f"start Apache ZooKeeper on it, or choose another directory with --data-dir."
        )
