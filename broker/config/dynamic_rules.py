"""Which broker settings change at run time, and how: the rules of Kafka's `DynamicBrokerConfig`.

Deviations from Kafka, all stricter: an unknown setting is rejected, unless `--ignore-unknown` names
its prefix, while Kafka stores all of them for its plugins; a listener that does not exist has no
settings; a change of what the broker reads only when it starts is rejected, which Kafka accepts,
describes as if it were in use, and uses from the next start on; only secrets may refer to config
providers; a new listener whose port is in use, or that lacks its keys or users, is rejected; Kafka
logs it when it opens it; of an open listener, what is not SASL, keys or trust is deleted together
with the listener only, and so is what the listener of brokers has of SASL: it stays.

`StoredSecrets` and `parsable` read a layer of dynamic settings from its znode: decoded, parsed and
checked one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.config.definitions import PER_BROKER, READ_ONLY, broker_settings, parse_value
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listeners import (
    LISTENERS,
    PREFIX,
    check_advertised,
    check_changed_listeners,
    check_listener_settings,
    find_broker_setting,
    listener_setting,
)
from ottla.broker.config.providers import has_reference, is_reference
from ottla.broker.config.rules import CHANGING_NUMBERS, check_numbers
from ottla.broker.config.sasl import check_sasl
from ottla.broker.config.sources import is_known, unknown_setting
from ottla.broker.config.unsupported import check_supported

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig

from collections.abc import Callable

from ottla.broker.config.definitions import (
    Setting,
    dynamic_only_settings,
)
from ottla.broker.config.listeners import (
    find_listener_setting,
)
from ottla.broker.config.password_encoder import PasswordEncoder

#: Settings of an open listener that new connections get (`SslConfigs.RECONFIGURABLE_CONFIGS`).
RENEWABLE = frozenset(
    (
        *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password"),
        *("ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.key.password"),
        *("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password"),
        "ssl.truststore.certificates",
    )
)
_LIMITS = frozenset(("max.connections", "max.connection.creation.rate", "num.network.threads"))


def check_dynamic_setting(
    name: str, text: str, config: BrokerConfig, listeners: Iterable[str], per_broker: bool
) -> None:
    """ConfigError when a setting cannot get this value while the broker runs.

    An unknown setting that begins with an ignored prefix is stored, without effect.
    """
    if not is_known(name):
        if name.startswith(config.ignored_prefixes):
            return
        raise ConfigError(unknown_setting(name))
    if name.startswith(PREFIX):
        listener_setting(name)
        check_listener_settings([name], listeners)
    setting = find_broker_setting(name)
    if name.startswith(PREFIX) and setting.name in _LIMITS | RENEWABLE:
        pass
    elif setting.mode == READ_ONLY and not name.startswith(PREFIX):
        raise ConfigError(f"Cannot update these configs dynamically: {name}")
    if not per_broker and (setting.mode == PER_BROKER or _is_of_one_broker(name)):
        raise ConfigError(
            "Cannot update these configs at default cluster level, broker id must be "
            f"specified: {name}"
        )
    if setting.sensitive and not (is_reference(text) or config.secrets.has_encoder):
        raise ConfigError(
            f"{name} is a secret, which every client of ZooKeeper could read: set "
            "password.encoder.secret in the configuration file, with which it is encrypted, or "
            "name a value of config.providers, such as ${file:/path:key}."
        )
    if not setting.sensitive and has_reference(text):
        # Its value is in DescribeConfigs and in errors: a user that may change settings could read
        # all that the providers know.
        raise ConfigError(
            f"{name} is no secret: write the value itself. At run time, references to "
            "config.providers are for secrets only."
        )
    if name in RENEWABLE:
        raise ConfigError(
            "These security configs can be dynamically updated only per-listener using the "
            f"listener prefix: {name}"
        )
    if setting.mode == PER_BROKER and name in broker_settings() and name not in LISTENERS:
        raise ConfigError(
            f"{name} is read when the broker starts: set it in the configuration file and restart "
            "the broker."
        )
    value = config.resolve(name, text)
    parse_value(setting, value)
    check_supported({name: value})


def check_changed_numbers(
    config: BrokerConfig, wanted: Mapping[str, str], *, per_broker: bool
) -> None:
    """ConfigError if numbers do not fit together (`check_numbers`) once `wanted` are the dynamic
    settings of the broker, or of the cluster."""
    own = _changing_numbers(wanted if per_broker else config.broker_dynamic)
    check_numbers(config.with_dynamic(None if per_broker else _changing_numbers(wanted), own))


def _changing_numbers(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: settings[name] for name in CHANGING_NUMBERS & settings.keys()}


def check_open_listener(name: str, listeners: Iterable[str]) -> None:
    """ConfigError for a setting that a listener keeps until it is closed or the broker restarts;
    `listeners` are those that are open, and stay so."""
    if not name.startswith(PREFIX):
        return
    try:
        found = listener_setting(name)
    except ConfigError:
        return  # it has no effect, and may be removed
    if found.listener not in {each.lower() for each in listeners}:
        return
    if found.mechanism is not None or found.setting.name not in RENEWABLE | _LIMITS:
        raise ConfigError(
            f"{name}: Configs cannot be updated dynamically for existing listener "
            f"ListenerName({found.listener.upper()}), restart broker or create a new listener for "
            "update; what is deleted may go together with the listener"
        )


def check_deletion(name: str, listeners: Iterable[str], inter_broker_listener: str) -> None:
    """ConfigError for a deletion of a setting that an open listener keeps; `listeners` as before.

    A listener has its SASL settings from the time when it was opened. They may be deleted before
    it is removed, as tools do: the broker could not start between these changes, as in Kafka.
    """
    if name.startswith(PREFIX) and _is_of_sasl(name):
        listeners = {each for each in listeners if each == inter_broker_listener}
    check_open_listener(name, listeners)


def check_new_listeners(old: BrokerConfig, new: BrokerConfig) -> None:
    """ConfigError when the listeners of `old` cannot become those of `new` while they are open."""
    listeners = new.listener_endpoints()
    check_changed_listeners(old.listener_endpoints(), listeners)
    check_advertised(listeners, new.advertised_endpoints(), new.inter_broker_listener())
    check_sasl(new, listeners)


def is_read_at_start(name: str, listeners: Iterable[str]) -> bool:
    """Whether a dynamic setting has its effect from the next start of the broker on only;
    `listeners` were open before the change."""
    try:
        check_open_listener(name, listeners)
    except ConfigError:
        return True
    if name in LISTENERS:
        return False
    return name in broker_settings() and broker_settings()[name].mode == PER_BROKER


def _is_of_sasl(name: str) -> bool:
    setting = find_broker_setting(name).name
    return setting.startswith("sasl.") or setting == "connections.max.reauth.ms"


def _is_of_one_broker(name: str) -> bool:
    """Kafka lets only limits of a listener be the same for all brokers."""
    return name.startswith(PREFIX) and find_broker_setting(name).name not in _LIMITS


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
