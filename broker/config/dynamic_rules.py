"""Which broker settings change at run time, and how: the rules of Kafka's `DynamicBrokerConfig`.

`check_change` is the check of AlterConfigs: the rules of a start (`ottla.broker.config.rules`) on
the settings as they would be, and the bounds that only a change at run time has. `take_layers`
reads the dynamic settings from their znodes, at a start and when they change: what cannot be used
is left out and named, so that a broker starts and serves whatever the tree holds.

Deviations from Kafka, all stricter: an unknown setting is rejected, unless `--ignore-unknown` names
its prefix, while Kafka stores all of them for its plugins; only secrets may refer to config
providers; a new listener whose port is in use, or that lacks its keys or users, is rejected; Kafka
logs it when it opens it. New connections of an open listener get its changed settings; in Kafka
only its keys and trust, and the rest is used from the next start on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.definitions import (
    PER_BROKER,
    READ_ONLY,
    Setting,
    broker_settings,
    dynamic_only_settings,
    parse_value,
    split_list,
)
from ottla.broker.config.errors import ConfigError, names_in, raise_all
from ottla.broker.config.listeners import (
    LISTENERS,
    PREFIX,
    base_name,
    check_changed_listeners,
    check_listener_settings,
    find_broker_setting,
    find_listener_setting,
    listener_setting,
)
from ottla.broker.config.password_encoder import PasswordEncoder
from ottla.broker.config.providers import has_reference, is_reference
from ottla.broker.config.rules import check_local_retention, problems
from ottla.broker.config.sources import is_known, unknown_setting
from ottla.broker.config.unsupported import check_supported

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig

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

#: Thread counts change to half or double of their value at once, as in Kafka's `DynamicThreadPool`.
THREADS = (
    *("background.threads", "log.cleaner.threads", "num.io.threads", "num.network.threads"),
    *("num.recovery.threads.per.data.dir", "num.replica.fetchers"),
)

_JMX_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"


class NoSecretStored(ConfigError):
    """A secret cannot be stored: there is no `password.encoder.secret`."""


def check_change(
    config: BrokerConfig,
    stored: Mapping[str, str],
    wanted: Mapping[str, str],
    *,
    per_broker: bool,
) -> BrokerConfig:
    """The settings once `wanted` are the dynamic ones of this broker, or of all brokers, instead of
    `stored`; both as they were set.

    Raises ConfigError for a change after which the broker would not start, or that cannot be made
    while it runs. What was wrong before, and stays as it is, is no reason.
    """
    changed = [name for name in {**wanted, **stored} if wanted.get(name) != stored.get(name)]
    for name in changed:
        if name in wanted:
            check_dynamic_setting(name, wanted[name], config, per_broker)
    ignored = {each.name for each in config.ignored if each.per_broker == per_broker}
    layer = {
        name: text
        for name, text in wanted.items()
        if name in changed or (name not in ignored and _is_usable(name, text, config))
    }
    for name in changed:
        if name not in wanted and _may_go_first(name, config):
            layer[name] = stored[name]
    after = config.with_dynamic(broker=layer) if per_broker else config.with_dynamic(cluster=layer)
    if per_broker and not set(LISTENERS).isdisjoint(changed):
        check_changed_listeners(config.listener_endpoints(), after.listener_endpoints())
    _check_threads(config, after)
    if not {"log.local.retention.ms", "log.local.retention.bytes"}.isdisjoint(changed):
        check_local_retention(after)
    known = {str(error) for error in problems(config)}
    raise_all([error for error in problems(after) if str(error) not in known])
    return after


def check_dynamic_setting(name: str, text: str, config: BrokerConfig, per_broker: bool) -> None:
    """ConfigError when a setting cannot get this value while the broker runs.

    An unknown setting that begins with an ignored prefix is stored, without effect.
    """
    if not is_known(name):
        if name.startswith(config.ignored_prefixes):
            return
        raise ConfigError(unknown_setting(name))
    if name.startswith(PREFIX):
        listener_setting(name)
    setting = find_broker_setting(name)
    check_dynamic_place(name, per_broker=per_broker)
    if setting.sensitive and not (is_reference(text) or config.secrets.has_encoder):
        raise NoSecretStored(
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
    value = config.resolve(name, text)
    parse_value(setting, value)
    check_supported({name: value})
    if setting.type == "class" and not value.strip():
        raise ConfigError(
            f"Invalid value {text} for configuration {name}: Class could not be found."
        )
    if name == "metric.reporters" and set(split_list(value)) - {_JMX_REPORTER}:
        raise ConfigError(
            f"metric.reporters: Java classes cannot be loaded here, but {_JMX_REPORTER} is "
            "accepted, without effect; docs/metrics.md has the metrics of this broker."
        )


def check_dynamic_place(name: str, *, per_broker: bool) -> None:
    """ConfigError for a setting that is not dynamic, or not with this name or for all brokers; the
    znodes of dynamic settings may hold anything."""
    setting = find_broker_setting(name)
    if setting.mode == READ_ONLY and not name.startswith(PREFIX):
        raise ConfigError(f"Cannot update these configs dynamically: {name}")
    if name in RENEWABLE:
        raise ConfigError(
            "These security configs can be dynamically updated only per-listener using the "
            f"listener prefix: {name}"
        )
    if not per_broker and (setting.mode == PER_BROKER or _is_of_one_broker(name)):
        raise ConfigError(
            "Cannot update these configs at default cluster level, broker id must be "
            f"specified: {name}"
        )


def _is_usable(name: str, text: str, config: BrokerConfig) -> bool:
    try:
        setting = _setting(name)
        if setting is not None:
            parse_value(setting, config.resolve(name, text))
    except ConfigError:
        return False
    return True


def _may_go_first(name: str, config: BrokerConfig) -> bool:
    """Whether an open listener keeps a setting that is deleted: tools delete its SASL settings
    before they remove the listener. That of brokers cannot be removed."""
    if not name.startswith(PREFIX) or name not in config.broker_dynamic:
        return False
    found = listener_setting(name)
    if found.setting.name != "connections.max.reauth.ms" and not found.setting.name.startswith(
        "sasl."
    ):
        return False
    return found.listener != config.inter_broker_listener().lower()


def _check_threads(config: BrokerConfig, after: BrokerConfig) -> None:
    for name in THREADS:
        _check_thread_count(name, config.value(name), after.value(name))
    for endpoint in config.listener_endpoints():
        name = "num.network.threads"
        old, new = (each.listener_limit(endpoint.listener_name, name) for each in (config, after))
        _check_thread_count(f"{PREFIX}{endpoint.listener_name.lower()}.{name}", old, new)


def _check_thread_count(name: str, old: object, new: object) -> None:
    assert isinstance(old, int)
    assert isinstance(new, int)
    problem = ""
    if new < 1:
        problem = "value should be at least 1"
    elif new < old // 2:
        problem = f"value should be at least half the current value {old}"
    elif new > old * 2:
        problem = f"value should not be greater than double the current value {old}"
    if new != old and problem:
        raise ConfigError(
            f"Dynamic thread count update validation failed for {name}={new}, {problem}"
        )


def _is_of_one_broker(name: str) -> bool:
    """Kafka lets only limits of a listener be the same for all brokers."""
    return name.startswith(PREFIX) and find_broker_setting(name).name not in _LIMITS


class IgnoredSetting(NamedTuple):
    """A dynamic setting in the znode tree that is not used, and why; `per_broker`: it is in the
    znode of this broker, otherwise in that of all brokers."""

    name: str
    per_broker: bool
    problem: str


def take_layers(
    config: BrokerConfig,
    cluster: Mapping[str, str],
    broker: Mapping[str, str],
    *,
    is_running: bool,
) -> list[IgnoredSetting]:
    """Make these the dynamic settings of `config`; they are as the znode tree holds them.

    Returns those that are left out: what cannot be read or is not dynamic, and what breaks a rule
    together with the others. A running broker keeps listeners that are open, even if their settings
    are incomplete; for a start their rules count as well, and without them it would fail.
    """
    ignored: list[IgnoredSetting] = []
    layers = {True: _usable(config, broker, True, ignored)}
    given = config.given.get("listeners") or config.default_text("listeners") or ""
    listeners = split_list(layers[True].get("listeners", given))
    layers[False] = _usable(config, cluster, False, ignored)
    _warn_of_absent_listeners(config, layers, [each.partition("://")[0] for each in listeners])
    while True:
        config.cluster_dynamic, config.broker_dynamic = layers[False], layers[True]
        config.refresh()
        culprits = _culprits(config, layers, is_running=is_running)
        if not culprits:
            return ignored
        for name, problem in culprits.items():
            for per_broker, layer in layers.items():
                if layer.pop(name, None) is not None:
                    ignored.append(IgnoredSetting(name, per_broker, problem))


def _usable(
    config: BrokerConfig,
    layer: Mapping[str, str],
    per_broker: bool,
    ignored: list[IgnoredSetting],
) -> dict[str, str]:
    """The values of a layer, each by itself."""
    good: dict[str, str] = {}
    for name, text in layer.items():
        try:
            setting = _setting(name)
            if name.startswith(PREFIX):
                setting = listener_setting(name).setting
            if setting is not None:
                check_dynamic_place(name, per_broker=per_broker)
            value = config.resolve(name, config.secrets.decode(name, text))
            if setting is not None:
                parse_value(setting, value)
            check_supported({name: value})
        except ConfigError as error:
            ignored.append(IgnoredSetting(name, per_broker, str(error)))
            continue
        good[name] = value
    return good


def _culprits(
    config: BrokerConfig, layers: Mapping[bool, Mapping[str, str]], *, is_running: bool
) -> dict[str, str]:
    """The dynamic settings because of which the rules of a start are broken, with the problem."""
    present = {**layers[True], **layers[False]}
    found: dict[str, str] = {}
    for error in problems(config):
        bases = {base_name(name) for name in names_in(error)}
        blamed = [name for name in present if base_name(name) in bases]
        if not blamed and not is_running:
            # A rule about what is missing: without the dynamic listeners, or without all, it is
            # that of the configuration file, which is right.
            blamed = [name for name in LISTENERS if name in present] or list(present)
        found.update(dict.fromkeys(blamed, str(error)))
    return found


def _warn_of_absent_listeners(
    config: BrokerConfig, layers: Mapping[bool, Mapping[str, str]], listeners: Iterable[str]
) -> None:
    for name in {**layers[True], **layers[False]}:
        try:
            check_listener_settings([name], listeners)
        except ConfigError as error:
            config.warn(f"Without effect until the listener is added: {error}")


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


def _setting(name: str) -> Setting | None:
    if name.startswith(PREFIX):
        return find_listener_setting(name)
    return broker_settings().get(name) or dynamic_only_settings().get(name)
