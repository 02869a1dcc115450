"""The `sasl.*` settings: which mechanisms a listener has, and the rules between them.

Kafka's names: `listener.name.<listener>.sasl.enabled.mechanisms` wins over the setting without a
listener; the login of a mechanism is `listener.name.<listener>.<mechanism>.sasl.jaas.config`. Where
it is not set, the JAAS file of the process has the logins (Kafka's `JaasContext`): its section
`<listener>.KafkaServer`, otherwise `KafkaServer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.definitions import broker_settings, parse_value, split_list
from ottla.broker.config.errors import ConfigError

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.jaas import JaasLogin
    from ottla.broker.config.jaas_file import JaasSection
    from ottla.broker.config.listeners import Endpoint

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

_LOGIN = "org.apache.kafka.common.security."
_MODULES = {
    "PLAIN": _LOGIN + "plain.PlainLoginModule",
    "SCRAM-SHA-256": _LOGIN + "scram.ScramLoginModule",
    "SCRAM-SHA-512": _LOGIN + "scram.ScramLoginModule",
    "OAUTHBEARER": _LOGIN + "oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}

_OR_A_FILE = (
    "or name a JAAS file with a KafkaServer section in KAFKA_OPTS "
    "(-Djava.security.auth.login.config=FILE)"
)


def enabled_mechanisms(config: BrokerConfig, listener_name: str) -> list[str]:
    """The mechanisms of a listener as they are written."""
    return split_list(config.listener_text(listener_name, "sasl.enabled.mechanisms") or "")


def mechanism_setting(listener_name: str, mechanism: str, name: str) -> str:
    """The name of a setting of one mechanism on one listener."""
    return f"listener.name.{listener_name.lower()}.{mechanism.lower()}.{name}"


def jaas_login(config: BrokerConfig, listener_name: str, mechanism: str) -> JaasLogin | None:
    """The login of a mechanism, None when there is none. Raises ConfigError."""
    name = mechanism_setting(listener_name, mechanism, "sasl.jaas.config")
    text = config.effective_text(name)
    if text is None:
        section = _section(config, listener_name)
        return None if section is None else _login_of_file(section, mechanism)
    from ottla.broker.config.jaas import parse_jaas

    try:
        login = parse_jaas(text)
    except ValueError as error:
        raise ConfigError(
            f'{name}: {error}; write it as {_MODULES[mechanism]} required name="value" ... ;'
        ) from None
    if login.module != _MODULES[mechanism]:
        raise ConfigError(f"{name}: for {mechanism} the class is {_MODULES[mechanism]}.")
    return login


def _section(config: BrokerConfig, listener_name: str) -> JaasSection | None:
    """What the JAAS file has for a listener. Raises ConfigError."""
    section = config.jaas_file.section(f"{listener_name.lower()}.KafkaServer", "KafkaServer")
    if section is not None:
        for login in section.logins:
            if login.module not in _MODULES.values():
                raise ConfigError(
                    f"{section.where}: there is no login module {login.module} here, but "
                    f"{', '.join(sorted(set(_MODULES.values())))}."
                )
    return section


def _login_of_file(section: JaasSection, mechanism: str) -> JaasLogin:
    """One without options where the section has none: Kafka too starts then, and no client
    logs in with PLAIN."""
    from ottla.broker.config.jaas import JaasLogin

    module = _MODULES[mechanism]
    login = section.login(module)
    if mechanism == "OAUTHBEARER" and (login is None or len(section.logins) != 1):
        raise ConfigError(
            f"{section.where}: for OAUTHBEARER the section has one login, {module}, and no other."
        )
    return JaasLogin(module, {}) if login is None else login


def _password_options(config: BrokerConfig, listener_name: str, mechanism: str) -> dict[str, str]:
    """`username` and `password` for other brokers.

    In a JAAS file they are those of any login of PLAIN or SCRAM, whatever the mechanism is: Kafka's
    login puts them into one subject, and takes the first of a hash set.
    """
    setting = mechanism_setting(listener_name, mechanism, "sasl.jaas.config")
    section = None
    if config.effective_text(setting) is None:
        section = _section(config, listener_name)
    if section is None:
        login = jaas_login(config, listener_name, mechanism)
        return {} if login is None else login.options
    from ottla.protocol.java_order import hash_map_order
    from ottla.protocol.steps import run_at_once

    modules = (_MODULES["PLAIN"], _MODULES["SCRAM-SHA-256"])
    logins = [each.options for each in section.logins if each.module in modules]
    options: dict[str, str] = {}
    for name in ("username", "password"):
        found = dict.fromkeys(login[name] for login in logins if name in login)
        if found:
            options[name] = run_at_once(hash_map_order(found))[0]
    return options


def plain_passwords(config: BrokerConfig, listener_name: str) -> dict[str, str]:
    """Passwords by user of a listener with PLAIN. Raises ConfigError."""
    login = jaas_login(config, listener_name, "PLAIN")
    options = {} if login is None else login.options
    return {
        name.removeprefix("user_"): value
        for name, value in options.items()
        if name.startswith("user_")
    }


def oauth_text(config: BrokerConfig, listener_name: str, name: str) -> str | None:
    """A setting of OAUTHBEARER on a listener; that of the mechanism wins."""
    special = config.effective_text(mechanism_setting(listener_name, "OAUTHBEARER", name))
    return special if special is not None else config.listener_text(listener_name, name)


def jwks_url(config: BrokerConfig, listener_name: str) -> str | None:
    """Where the keys of signed bearer tokens are; None for tokens without a signature."""
    return oauth_text(config, listener_name, "sasl.oauthbearer.jwks.endpoint.url") or None


def max_reauth_ms(config: BrokerConfig, listener_name: str, mechanism: str) -> int:
    """`connections.max.reauth.ms`, for a mechanism on a listener; not positive for none."""
    name = "connections.max.reauth.ms"
    for special in (
        mechanism_setting(listener_name, mechanism, name),
        f"listener.name.{listener_name.lower()}.{name}",
    ):
        text = config.effective_text(special)
        if text is not None:
            try:
                return int(text)
            except ValueError:
                raise ConfigError(f"{special}: {text!r} is not a number of milliseconds.") from None
    return config.connections_max_reauth_ms


def max_receive_size(config: BrokerConfig, listener_name: str) -> int:
    """`sasl.server.max.receive.size` of a listener. Raises ConfigError."""
    name = "sasl.server.max.receive.size"
    value = parse_value(broker_settings()[name], config.listener_text(listener_name, name))
    assert isinstance(value, int)
    return value


class PeerLogin(NamedTuple):
    """How this broker authenticates to others: the listener, and the options of the login."""

    listener_name: str
    security_protocol: str
    mechanism: str
    options: dict[str, str]


def peer_login(config: BrokerConfig) -> PeerLogin | None:
    """How this broker authenticates to others; None without SASL. Raises ConfigError."""
    name = config.inter_broker_listener()
    protocols = {each.listener_name: each for each in config.listener_endpoints()}
    if name not in protocols or not protocols[name].uses_sasl:
        return None
    mechanism = config.listener_text(name, "sasl.mechanism.inter.broker.protocol") or ""
    enabled = enabled_mechanisms(config, name)
    if mechanism not in enabled:
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol is {mechanism}, which is none of the mechanisms "
            f"of listener {name} ({', '.join(enabled)}): set it to one of them."
        )
    if mechanism in ("OAUTHBEARER", "GSSAPI"):
        login = jaas_login(config, name, mechanism)
        options = {} if login is None else login.options
        return PeerLogin(name, protocols[name].security_protocol, mechanism, options)
    options = _password_options(config, name, mechanism)
    if "username" not in options or "password" not in options:
        raise ConfigError(
            f"Brokers authenticate to each other with {mechanism} on listener {name}: set "
            f"{mechanism_setting(name, mechanism, 'sasl.jaas.config')} with username and password, "
            f"{_OR_A_FILE}."
        )
    return PeerLogin(name, protocols[name].security_protocol, mechanism, options)


class KerberosOptions(NamedTuple):
    """The login of a listener with GSSAPI; `service_name` is "" where none is set."""

    principal: str
    keytab: str
    service_name: str
    setting: str


def kerberos_options(config: BrokerConfig, listener_name: str) -> KerberosOptions:
    """Raises ConfigError when keytab or principal are missing."""
    setting = mechanism_setting(listener_name, "GSSAPI", "sasl.jaas.config")
    login = jaas_login(config, listener_name, "GSSAPI")
    options = {} if login is None else login.options
    if "keyTab" not in options or "principal" not in options:
        raise ConfigError(
            f"Listener {listener_name} has GSSAPI and needs its keytab: set {setting} to "
            f'{_MODULES["GSSAPI"]} required useKeyTab=true storeKey=true keyTab="/path" '
            f'principal="kafka/host@REALM"; {_OR_A_FILE}.'
        )
    named = (config.listener_text(listener_name, "sasl.kerberos.service.name") or "").strip()
    in_login = options.get("serviceName", "")
    if named and in_login and named != in_login:
        raise ConfigError(
            f"{setting}: serviceName is {in_login}, but sasl.kerberos.service.name is {named}."
        )
    return KerberosOptions(options["principal"], options["keyTab"], named or in_login, setting)


def check_sasl(config: BrokerConfig, listeners: list[Endpoint]) -> None:
    """ConfigError for SASL settings that this broker cannot apply."""
    for endpoint in listeners:
        if endpoint.uses_sasl:
            _check_listener(config, endpoint.listener_name)
    peer_login(config)


def _check_listener(config: BrokerConfig, name: str) -> None:
    setting = f"listener.name.{name.lower()}.sasl.enabled.mechanisms"
    mechanisms = enabled_mechanisms(config, name)
    if not mechanisms:
        raise ConfigError(f"Listener {name} requires SASL, but {setting} is empty.")
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            raise ConfigError(
                f"{setting}: there is no SASL mechanism {mechanism!r} here, but "
                f"{', '.join(MECHANISMS)}."
            )
        handler = mechanism_setting(name, mechanism, "sasl.server.callback.handler.class")
        _check_handler(handler, config.effective_text(handler), jwks_url(config, name))
        login = jaas_login(config, name, mechanism)
        max_reauth_ms(config, name, mechanism)
        if mechanism == "GSSAPI":
            _check_kerberos(config, name)
        if mechanism == "PLAIN" and login is None:
            raise ConfigError(
                f"Listener {name} has PLAIN and needs its users: set "
                f"{mechanism_setting(name, mechanism, 'sasl.jaas.config')} to "
                f'{_MODULES[mechanism]} required user_alice="password"; {_OR_A_FILE}.'
            )


def _check_kerberos(config: BrokerConfig, name: str) -> None:
    try:
        options = kerberos_options(config, name)
    except ConfigError as error:
        if jaas_login(config, name, "GSSAPI") is None:
            raise ConfigError(
                f"{error} GSSAPI is the default: for another mechanism set "
                f"listener.name.{name.lower()}.sasl.enabled.mechanisms to some of "
                f"{', '.join(MECHANISMS)}."
            ) from None
        raise
    if name == config.inter_broker_listener() and not options.service_name:
        raise ConfigError(
            f"Brokers authenticate to each other with GSSAPI on listener {name}: set "
            "sasl.kerberos.service.name to the first part of their principals, such as kafka."
        )


def _check_handler(setting: str, name: str | None, keys: str | None) -> None:
    """Kafka's own class for signed tokens stands for what is built in; no other is supported."""
    if name is None:
        return
    if not name.endswith(".OAuthBearerValidatorCallbackHandler"):
        raise ConfigError(f"{setting}: Java classes cannot be loaded here; drop the setting.")
    if not keys:
        raise ConfigError(f"{setting} needs sasl.oauthbearer.jwks.endpoint.url.")
