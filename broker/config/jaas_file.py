"""The JAAS file of the process: KAFKA_OPTS names it, `-Djava.security.auth.login.config=FILE`.

It has logins for what no setting names: sections `<listener>.KafkaServer` and `KafkaServer` for
listeners and for other brokers, `Client` for ZooKeeper. Like the JVM, a broker reads it once.
Errors never repeat what stands in a value.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.jaas import JaasLogin, parse_jaas_file
from ottla.broker.config.text_file import read_text_file

_FILE = "java.security.auth.login.config"
_OPTION = re.compile(r"(?:^|\s)-D([^\s=]+)=(\S*)")
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
# Logins and comments of one broker; a file that is larger is some other file.
_MAX_BYTES = 1 << 20


class JaasSection(NamedTuple):
    """`where` names file and section, for errors. The logins hold secrets: never log them."""

    where: str
    logins: tuple[JaasLogin, ...]

    def login(self, module: str) -> JaasLogin | None:
        """The login of a class; of several, the first one that has an option decides."""
        found = [each.options for each in self.logins if each.module == module]
        if not found:
            return None
        options: dict[str, str] = {}
        for each in found:
            options = each | options
        return JaasLogin(module, options)


class JaasFile:
    """The sections of the file that `kafka_opts`, the options of the JVM, name."""

    def __init__(self, kafka_opts: str) -> None:
        self.properties: dict[str, str] = dict(_OPTION.findall(kafka_opts))
        # `-Dname==file` is Java's way to say that no other file counts.
        path = self.properties.get(_FILE, "").removeprefix("=").strip("\"'")
        self.path = path.removeprefix("file:") or None
        self._sections: dict[str, tuple[JaasLogin, ...]] | None = None

    def section(self, *names: str) -> JaasSection | None:
        """The first of these sections that the file has. Raises ConfigError."""
        if self.path is None:
            return None
        if self._sections is None:
            self._sections = self._read(self.path)
        for name in names:
            if name in self._sections:
                return JaasSection(f"{self.path}, section {name}", self._sections[name])
        return None

    def _read(self, path: str) -> dict[str, tuple[JaasLogin, ...]]:
        try:
            text = read_text_file(path, _MAX_BYTES)
        except OSError as error:
            raise ConfigError(f"KAFKA_OPTS: {path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"KAFKA_OPTS: {path} is not a text in UTF-8.") from None
        try:
            return {
                name: tuple(self._expanded(login) for login in logins)
                for name, logins in parse_jaas_file(text).items()
            }
        except ValueError as error:
            raise ConfigError(f"KAFKA_OPTS: {path}: {error}.") from None

    def _expanded(self, login: JaasLogin) -> JaasLogin:
        """`${name}` in a value is a system property, as in Java."""
        options = {
            name: _REFERENCE.sub(self._property, value) for name, value in login.options.items()
        }
        return JaasLogin(login.module, options)

    def _property(self, reference: re.Match[str]) -> str:
        name = reference.group(1)
        if name == "/":
            return os.sep
        if name == "user.home":
            return self.properties.get(name, os.path.expanduser("~"))
        if name not in self.properties:
            raise ValueError(
                f"there is no system property {name} for ${{{name}}}: add -D{name}=... to "
                "KAFKA_OPTS (config.providers are for the settings file)"
            )
        return self.properties[name]
