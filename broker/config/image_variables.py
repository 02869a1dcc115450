"""Environment variables of Kafka's usual images that are no settings under their own names.

They are translated into `KAFKA_...` variables of settings, or stop the start with a sentence where
ignoring one would start another broker than the variable describes. Known are the images of Apache
Kafka, Confluent, Bitnami and wurstmeister. `ottla healthcheck` imports this module: it is light.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.text_file import PASSWORD_BYTES_MAX, read_text_file

#: Where Ottla's image keeps values that the settings file and all variables override.
IMAGE_PREFIX = "OTTLA_IMAGE_"
_IMAGE_LISTENERS = f"{IMAGE_PREFIX}LISTENERS"
_ADVERTISED = ("OTTLA_ADVERTISED_LISTENERS", "KAFKA_ADVERTISED_LISTENERS")

_BITNAMI_PREFIX = "KAFKA_CFG_"

# Where the images of Apache Kafka and Confluent expect key stores and files with their passwords.
SECRETS_DIRECTORY = "/etc/kafka/secrets"
_FILE_NAMES = {
    "KAFKA_SSL_KEYSTORE_FILENAME": "KAFKA_SSL_KEYSTORE_LOCATION",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "KAFKA_SSL_TRUSTSTORE_LOCATION",
}
_CREDENTIALS = {
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": "KAFKA_SSL_KEYSTORE_PASSWORD",
    "KAFKA_SSL_KEY_CREDENTIALS": "KAFKA_SSL_KEY_PASSWORD",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "KAFKA_SSL_TRUSTSTORE_PASSWORD",
}

_IN_LISTENERS = "write the port into KAFKA_LISTENERS"
_IN_ADVERTISED = "write it into KAFKA_ADVERTISED_LISTENERS, such as PLAINTEXT://host:9092"
_USERS = (
    "this image creates no users and no keys from variables: set sasl.jaas.config for the listener "
    "(docs/security.md), or ssl.keystore.location (docs/security-tls.md)"
)
_ZOOKEEPER_LOGIN = (
    "set zookeeper.ssl.client.enable and zookeeper.ssl.*, or a JAAS file with a section Client in "
    "KAFKA_OPTS"
)

# Variables that start another broker than described when they are ignored, and what replaces them.
_REFUSED = {
    "KAFKA_HOST_NAME": "write it into KAFKA_LISTENERS",
    "KAFKA_PORT": _IN_LISTENERS,
    "KAFKA_ADVERTISED_HOST_NAME": _IN_ADVERTISED,
    "KAFKA_ADVERTISED_PORT": _IN_ADVERTISED,
    "HOSTNAME_COMMAND": "a command cannot set the address: " + _IN_ADVERTISED,
    "PORT_COMMAND": "a command cannot set the port: " + _IN_ADVERTISED,
    "BROKER_ID_COMMAND": "a command cannot set the id: set KAFKA_BROKER_ID, or leave it out",
    "RACK_COMMAND": "a command cannot set the rack: set KAFKA_BROKER_RACK",
    "KAFKA_EXTRA_FLAGS": "give the flags to the container behind `start`, as --override key=value",
    "KAFKA_ENABLE_KRAFT": "there is no KRaft here: drop it, and set KAFKA_ZOOKEEPER_CONNECT for a "
    "cluster",
    "KAFKA_CLIENT_USERS": _USERS,
    "KAFKA_CLIENT_PASSWORDS": _USERS,
    "KAFKA_INTER_BROKER_USER": _USERS,
    "KAFKA_INTER_BROKER_PASSWORD": _USERS,
    "KAFKA_CERTIFICATE_PASSWORD": _USERS,
    "KAFKA_TLS_TYPE": _USERS,
    "KAFKA_TLS_CLIENT_AUTH": "set KAFKA_SSL_CLIENT_AUTH",
    "KAFKA_ZOOKEEPER_PROTOCOL": _ZOOKEEPER_LOGIN,
    "KAFKA_ZOOKEEPER_USER": _ZOOKEEPER_LOGIN,
    "KAFKA_ZOOKEEPER_PASSWORD": _ZOOKEEPER_LOGIN,
}
# Values with which the image does what this broker does anyway.
_HARMLESS = {
    "KAFKA_ENABLE_KRAFT": ("no", "false"),
    "KAFKA_ZOOKEEPER_PROTOCOL": ("plaintext",),
    "KAFKA_TLS_CLIENT_AUTH": ("none",),
}
# Commands of wurstmeister's image are run where KAFKA_... variables are there, too.
_WITHOUT_PREFIX = ("HOSTNAME_COMMAND", "PORT_COMMAND", "BROKER_ID_COMMAND", "RACK_COMMAND")

# Settings of a Java process.
_OF_JAVA = (
    *("KAFKA_HEAP_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS", "KAFKA_JMX_OPTS"),
    *("KAFKA_JMX_PORT", "KAFKA_JMX_HOSTNAME", "KAFKA_LOG4J_OPTS", "KAFKA_LOG4J_LOGGERS"),
    *("KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_TOOLS_LOG4J_LOGLEVEL"),
)

_CREATE_TOPICS = "KAFKA_CREATE_TOPICS"
_SEPARATOR = "KAFKA_CREATE_TOPICS_SEPARATOR"

#: What `translate` reads and no setting is read from.
TRANSLATED = frozenset((*_REFUSED, *_OF_JAVA, *_FILE_NAMES, *_CREDENTIALS, _SEPARATOR))


class Variables(NamedTuple):
    """`environment` has settings under `KAFKA_...` and Ottla's names only. `origins` has the
    variable that was set, for each one that was translated."""

    environment: dict[str, str]
    origins: dict[str, str]
    warnings: list[str]
    errors: list[ConfigError]


def translate(environment: Mapping[str, str]) -> Variables:
    """The variables of a broker's environment, with those of the usual images translated.

    A `KAFKA_CFG_X` replaces a `KAFKA_X`, which may be the image's own. `OTTLA_IMAGE_LISTENERS` is
    replaced by listeners on the ports of `KAFKA_ADVERTISED_LISTENERS` if that is set.
    """
    found = Variables(dict(environment), {}, [], [])
    for variable, value in environment.items():
        if variable.startswith(_BITNAMI_PREFIX):
            del found.environment[variable]
            _add(found, f"KAFKA_{variable.removeprefix(_BITNAMI_PREFIX)}", value, variable)
    _refuse(found)
    _translate_stores(environment, found)
    _derive_listeners(environment, found)
    separator = environment.get(_SEPARATOR)
    if separator and _CREATE_TOPICS in environment:
        try:
            topics = re.split(separator, environment[_CREATE_TOPICS])
        except re.error as error:
            found.errors.append(
                ConfigError(f"environment variable {_SEPARATOR}: {separator!r}: {error}.")
            )
        else:
            found.environment[_CREATE_TOPICS] = ",".join(topics)
    ignored = [name for name in _OF_JAVA if _is_set(environment, name)]
    if ignored:
        found.warnings.append(
            f"Without effect, since this broker is no Java process: {', '.join(ignored)}. There is "
            "no heap to size (limit the memory of the container or unit); metrics are on "
            "ottla.metrics.address, and ottla.log.level is the level of the log"
        )
    return found


def _add(found: Variables, name: str, value: str, origin: str) -> None:
    found.environment[name] = value
    found.origins[name] = origin


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    """Whether a person set it: Kubernetes sets KAFKA_PORT to tcp://10.0.0.1:9092 for a service."""
    value = environment.get(name, "").strip()
    return bool(value) and not value.startswith("tcp://")


def _refuse(found: Variables) -> None:
    environment = found.environment
    is_kafka = any(name.startswith("KAFKA_") for name in environment)
    for name, fix in _REFUSED.items():
        if not _is_set(environment, name) or (name in _WITHOUT_PREFIX and not is_kafka):
            continue
        if environment[name].strip().lower() not in _HARMLESS.get(name, ()):
            found.errors.append(
                ConfigError(
                    f"environment variable {found.origins.get(name, name)} has no effect in this "
                    f"broker: {fix}."
                )
            )


def _translate_stores(environment: Mapping[str, str], found: Variables) -> None:
    for name, setting in _FILE_NAMES.items():
        if _is_set(environment, name):
            _add(found, setting, f"{SECRETS_DIRECTORY}/{environment[name]}", name)
    for name, setting in _CREDENTIALS.items():
        if not _is_set(environment, name):
            continue
        path = f"{SECRETS_DIRECTORY}/{environment[name]}"
        try:
            _add(found, setting, read_text_file(path, PASSWORD_BYTES_MAX).strip(), name)
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or "it is no text"
            found.errors.append(
                ConfigError(
                    f"environment variable {name}: cannot read {path} ({problem}); mount the file "
                    f"with the password there, or set {setting}."
                )
            )


def _derive_listeners(environment: Mapping[str, str], found: Variables) -> None:
    origin = next((name for name in _ADVERTISED if environment.get(name, "").strip()), None)
    if origin is None:
        return
    text = environment[origin]
    if "_{" in text:
        found.errors.append(
            ConfigError(
                f"environment variable {origin}: {text} has a placeholder that no command fills "
                "here: write the name or address that clients use."
            )
        )
    derived = derived_listeners(text, everywhere=_IMAGE_LISTENERS in environment)
    if derived:
        _add(found, _IMAGE_LISTENERS, derived, origin)


def derived_listeners(advertised: str, *, everywhere: bool) -> str:
    """The listeners on the ports of advertised ones, as the images of Apache Kafka and Confluent
    derive them: on all addresses. Unless `everywhere`, what is advertised as loopback is bound to
    loopback. "" for a text that is no list of listeners."""
    listeners = []
    for item in advertised.split(","):
        name, separator, address = item.strip().partition("://")
        host, colon, port = address.rpartition(":")
        if not (name and separator and colon and port.isdigit()):
            return ""
        is_local = host.strip("[]").lower() in ("localhost", "::1") or host.startswith("127.")
        bound = "127.0.0.1" if is_local and not everywhere else ""
        listeners.append(f"{name}://{bound}:{port}")
    return ",".join(listeners)
