"""Values kept outside of the settings: `${provider:path:key}` (KIP-297, KIP-421).

`config.providers` names the providers, `config.providers.<name>.class` one of Kafka's three: of
properties files, of directories with a file for each key, of environment variables. Resolved are
settings of the file, the environment and the command line, and dynamic ones.

Kafka leaves a reference that it cannot resolve as it stands, so that `${file:/secrets:password}`
becomes the password. Here it is an error.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping

from ottla.broker.config.definitions import split_list
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.properties_file import read_properties

NAMES = "config.providers"

_REFERENCE = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_CLASSES = "org.apache.kafka.common.config.provider."
# A file with one secret; one that is bigger is something else.
_MAX_FILE_BYTES = 1 << 20

_Find = Callable[[str, str], str]
"""The value of a key in a path. Raises ValueError with words that hold no secret."""


def is_reference(text: str) -> bool:
    """Whether a value is one reference and nothing else, so that it holds no secret itself."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def has_reference(text: str) -> bool:
    """Whether a value has a reference in it."""
    return _REFERENCE.search(text) is not None


class ConfigProviders:
    """The providers that some settings name."""

    def __init__(
        self, given: Mapping[str, str], environment: Mapping[str, str] = os.environ
    ) -> None:
        """Raises ConfigError for a provider that Kafka does not have."""
        self._find: dict[str, _Find] = {}
        for name in split_list(given.get(NAMES, "")):
            setting = f"{NAMES}.{name}.class"
            kind = given.get(setting, "").strip().removeprefix(_CLASSES)
            parameter = f"{NAMES}.{name}.param."
            if kind in ("FileConfigProvider", "DirectoryConfigProvider"):
                allowed = _Paths(given.get(f"{parameter}allowed.paths"))
                is_file = kind == "FileConfigProvider"
                self._find[name] = allowed.property_of if is_file else allowed.content_of
            elif kind == "EnvVarConfigProvider":
                pattern = given.get(f"{parameter}allowlist.pattern")
                self._find[name] = _Variables(environment, setting, pattern).value_of
            else:
                raise ConfigError(
                    f"{setting}: there is no provider {kind or '(none)'} here; write "
                    f"{_CLASSES}FileConfigProvider, DirectoryConfigProvider or "
                    "EnvVarConfigProvider."
                )

    def resolve(self, name: str, text: str) -> str:
        """The value of a setting with its references replaced. ConfigError for one that has no
        value; what was found is not searched for references again."""
        if name.startswith(NAMES) or "${" not in text:
            return text

        def value(match: re.Match[str]) -> str:
            provider, path, key = match.group(1), match.group(2) or "", match.group(3)
            find = self._find.get(provider)
            if find is None:
                known = ", ".join(self._find) or "none"
                raise ConfigError(
                    f"{name}: {match.group()} names the provider {provider}, but {NAMES} has "
                    f"{known}. Name it there, with {NAMES}.{provider}.class."
                )
            try:
                return find(path, key)
            except ValueError as error:
                raise ConfigError(f"{name}: {match.group()} has no value: {error}.") from None

        return _REFERENCE.sub(value, text)

    def resolve_all(self, given: Mapping[str, str]) -> dict[str, str]:
        """All settings with their references replaced. Raises ConfigError."""
        return {name: self.resolve(name, text) for name, text in given.items()}


class _Paths:
    """Files below `allowed.paths` (KIP-993), any file when there are none."""

    def __init__(self, allowed: str | None) -> None:
        paths = None if allowed is None else split_list(allowed)
        self._allowed = None if paths is None else [os.path.realpath(path) for path in paths]

    def _check(self, path: str) -> None:
        if not path:
            raise ValueError("it names no path")
        real = os.path.realpath(path)
        if self._allowed is not None and not any(
            os.path.commonpath((real, each)) == each for each in self._allowed
        ):
            raise ValueError(f"{path} is not within allowed.paths")
        try:
            mode = os.stat(real).st_mode
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        # Opening a pipe would wait for its other end, and a device may have no end.
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ValueError(f"{path} is no file")

    def property_of(self, path: str, key: str) -> str:
        self._check(path)
        try:
            properties = {item.name: item.value for item in read_properties(path)}
        except ConfigError:
            raise ValueError(f"{path} cannot be read as a properties file") from None
        if key not in properties:
            raise ValueError(f"{path} has no key {key}")
        return properties[key]

    def content_of(self, path: str, key: str) -> str:
        self._check(path)
        if not key or os.sep in key or key in (".", ".."):
            raise ValueError(f"{key!r} is no name of a file in {path}")
        file_path = os.path.join(path, key)
        self._check(file_path)
        try:
            with open(file_path, "rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
            text = data.decode()
        except OSError as error:
            raise ValueError(f"{file_path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{file_path} is not UTF-8 text") from None
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError(f"{file_path} has more than {_MAX_FILE_BYTES} bytes")
        return text


class _Variables:
    """Environment variables whose names match `allowlist.pattern`."""

    def __init__(self, environment: Mapping[str, str], setting: str, pattern: str | None) -> None:
        self._environment = environment
        try:
            self._pattern = re.compile(".*" if pattern is None else pattern)
        except re.error as error:
            name = setting.replace(".class", ".param.allowlist.pattern")
            raise ConfigError(f"{name}: the pattern is wrong: {error}.") from None

    def value_of(self, path: str, key: str) -> str:
        if path:
            raise ValueError("environment variables have no path")
        if self._pattern.fullmatch(key) is None or key not in self._environment:
            raise ValueError(f"there is no environment variable {key}, or it is not allowed")
        return self._environment[key]
