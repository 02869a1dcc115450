"""A layer of dynamic settings: what a znode of a broker holds, parsed, checked and decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ottla.broker.config.definitions import (
    Setting,
    broker_settings,
    dynamic_only_settings,
    parse_value,
)
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listener_settings import (
    PREFIX,
    check_listener_settings,
    find_listener_setting,
    listener_setting,
)
from ottla.broker.config.password_encoder import PasswordEncoder
from ottla.broker.config.providers import is_reference
from ottla.broker.config.unsupported import check_supported


class StoredSecrets:
    """The secrets of dynamic settings, which are encrypted in the znode tree.

    A reference to `config.providers` is no secret and may stand there as it is.
    """

    def __init__(self, encoder: PasswordEncoder | None) -> None:
        """Without an encoder (no `password.encoder.secret`) there are references only."""
        self._encoder = encoder

    @property
    def has_encoder(self) -> bool:
        """Whether secrets can be stored."""
        return self._encoder is not None

    def decode(self, name: str, text: str) -> str:
        """The value of a setting as it was set. Raises ConfigError for a secret that cannot be
        read."""
        if not is_secret(name) or is_reference(text):
            return text
        if self._encoder is None:
            raise ConfigError(
                f"{name} is a secret, which is stored encrypted: set password.encoder.secret, or "
                "write ${file:...} of config.providers."
            )
        try:
            return self._encoder.decode(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    def decode_all(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The values as they were set; a secret that cannot be read is left out, as in Kafka."""
        values = {}
        for name, text in properties.items():
            try:
                values[name] = self.decode(name, text)
            except ConfigError:
                continue
        return values

    def encode_all(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The values for the znode tree."""
        encoder = self._encoder
        if encoder is None:
            return dict(properties)
        return {
            name: encoder.encode(text) if is_secret(name) else text
            for name, text in properties.items()
        }


def is_secret(name: str) -> bool:
    """Whether a dynamic setting of a broker holds a password or a key."""
    setting = _setting(name)
    return setting is not None and setting.sensitive


def parsable(
    layer: Mapping[str, str],
    listeners: Iterable[str],
    secrets: StoredSecrets,
    resolve: Callable[[str, str], str],
    warn: Callable[[str], None],
) -> dict[str, str]:
    """The values of a layer. One that cannot be used is left out with a warning, as Kafka does:
    what stands in the znode was checked by the broker that wrote it."""
    good: dict[str, str] = {}
    for name, text in layer.items():
        try:
            setting = _setting(name)
            if name.startswith(PREFIX):
                check_listener_settings([name], listeners)
                setting = listener_setting(name).setting
            value = resolve(name, secrets.decode(name, text))
            if setting is not None:
                parse_value(setting, value)
            check_supported({name: value})
        except ConfigError as error:
            warn(f"Ignoring a dynamic setting: {error}")
            continue
        good[name] = value
    return good


def _setting(name: str) -> Setting | None:
    if name.startswith(PREFIX):
        return find_listener_setting(name)
    return broker_settings().get(name) or dynamic_only_settings().get(name)
