"""Every setting that protects something, and the test that shows its effect.

docs/configuration.md calls a security setting used only when it is here: `PROBED` are rows of
`tests/doubles/settings_probes.py`, which tests/integration/test_settings_probe.py flips in the
file, for one listener and at run time; `SHOWN` name another test. tests/tidy compares.
"""

from __future__ import annotations

from collections.abc import Iterable

_PREFIXES = (
    *("ssl.", "sasl.", "security.", "delegation.token.", "zookeeper.ssl.", "zookeeper.set."),
    *("password.encoder.", "max.connection", "connection", "ottla.console.", "ottla.ssl."),
    *("ottla.zookeeper.", "authorizer.", "principal.", "super.", "allow.everyone", "config.prov"),
)
_NAMES = frozenset(
    (
        *("alter.config.policy.class.name", "create.topic.policy.class.name", "listeners"),
        *("client.quota.callback.class", "inter.broker.listener.name", "zookeeper.connect"),
        *("listener.security.protocol.map", "ottla.metrics.hosts"),
        *("socket.request.max.bytes", "advertised.listeners"),
    )
)


def security_settings(names: Iterable[str]) -> list[str]:
    """Those of the names that protect something."""
    return [name for name in names if name.startswith(_PREFIXES) or name in _NAMES]


#: In the tables of tests/doubles/settings_probes.py.
PROBED = frozenset(
    (
        *("allow.everyone.if.no.acl.found", "authorizer.class.name", "connections.max.reauth.ms"),
        *("delegation.token.master.key", "delegation.token.secret.key"),
        *("listener.security.protocol.map", "ottla.ssl.crl.location", "sasl.enabled.mechanisms"),
        *("sasl.jaas.config", "sasl.oauthbearer.clock.skew.seconds"),
        *("sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer"),
        *("sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.sub.claim.name"),
        *("sasl.server.max.receive.size", "socket.request.max.bytes", "ssl.cipher.suites"),
        *("ssl.client.auth", "ssl.enabled.protocols", "ssl.key.password"),
        *("ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location"),
        *("ssl.keystore.password", "ssl.keystore.type", "ssl.principal.mapping.rules"),
        *("ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.password"),
        *("ssl.truststore.type", "super.users"),
    )
)

_TLS = "tests/unit/broker/security/tls/"
_SASL = "tests/unit/broker/security/sasl/"
_ZOOKEEPER = "tests/integration/test_zookeeper_security.py::"
_LOGIN = "tests/unit/broker/security/test_zookeeper_login.py::"
_LIMITS = "tests/integration/test_connection_limits.py::"
_LAYERS = "tests/unit/broker/config/test_dynamic_rules.py::"
_CLUSTER = "tests/integration/test_sasl_cluster.py::test_a_mixed_cluster"

#: Settings that need more than one broker and a client: the test that shows their effect.
SHOWN = {
    **dict.fromkeys(
        ("alter.config.policy.class.name", "create.topic.policy.class.name"),
        "tests/integration/test_policies.py::test_topics_and_changes_are_rejected",
    ),
    "client.quota.callback.class": "tests/integration/test_quota_callback.py::"
    "test_clients_of_a_group_share_a_quota",
    "advertised.listeners": "tests/unit/broker/config/test_broker_config.py::"
    "test_a_wildcard_is_advertised_as_unknown_host",
    "config.providers": "tests/unit/broker/config/test_providers.py::"
    "test_values_of_a_settings_file",
    "connection.failed.authentication.delay.ms": f"{_SASL}test_session.py::"
    "test_a_wrong_password_costs_time_and_one_line",
    "connections.max.idle.ms": "tests/unit/broker/net/test_server.py::"
    "test_idle_connections_are_closed_and_busy_ones_are_not",
    "delegation.token.expiry.check.interval.ms": f"{_SASL}test_delegation_tokens.py::"
    "test_the_controller_removes_what_has_expired",
    "delegation.token.expiry.time.ms": f"{_SASL}test_delegation_tokens.py::"
    "test_who_may_change_it_and_until_when",
    "delegation.token.max.lifetime.ms": f"{_SASL}test_delegation_tokens.py::"
    "test_who_may_change_it_and_until_when",
    "inter.broker.listener.name": _CLUSTER,
    "listeners": "tests/integration/test_tls.py::test_plain_and_encrypted_side_by_side",
    "max.connection.creation.rate": "tests/unit/broker/net/test_listener.py::",
    "max.connections": f"{_LIMITS}test_a_full_listener_lets_others_wait_until_its_limit_is_raised",
    "max.connections.per.ip": f"{_LIMITS}test_an_address_has_a_limit_that_changes_at_run_time",
    "max.connections.per.ip.overrides": f"{_LIMITS}"
    "test_an_address_has_a_limit_that_changes_at_run_time",
    "ottla.console.allow.remote": "tests/integration/test_console.py::",
    "ottla.console.enable": "tests/integration/test_console.py::",
    **dict.fromkeys(
        ("ottla.console.hosts", "ottla.console.token"),
        "tests/integration/test_console.py::test_remote_use_needs_the_token_and_a_known_name",
    ),
    **dict.fromkeys(
        ("ottla.console.schema.registry.url", "ottla.console.schema.registry.user.info"),
        "tests/integration/test_console_records.py::test_avro_is_decoded_by_the_registry",
    ),
    "ottla.metrics.hosts": "tests/unit/broker/observability/test_http_endpoint.py::"
    "test_a_name_that_is_not_this_machine_gets_no_metrics",
    "ottla.console.read.only": "tests/integration/test_console_cluster.py::"
    "test_a_read_only_console",
    "ottla.console.principal": "tests/integration/test_console.py::"
    "test_the_console_shows_what_its_principal_may_see",
    "ottla.zookeeper.digest": f"{_ZOOKEEPER}test_tls_credentials_acls_a_path_and_a_dead_host",
    "password.encoder.secret": f"{_LAYERS}test_a_secret_is_stored_encrypted_and_used_as_it_was_set",
    "password.encoder.old.secret": f"{_LAYERS}"
    "test_secrets_of_the_old_secret_are_encrypted_again_at_the_start",
    **dict.fromkeys(
        (
            *("password.encoder.cipher.algorithm", "password.encoder.iterations"),
            *("password.encoder.key.length", "password.encoder.keyfactory.algorithm"),
        ),
        "tests/unit/broker/config/test_password_encoder.py::"
        "test_the_parameters_of_the_settings_are_in_the_text",
    ),
    "sasl.mechanism.inter.broker.protocol": _CLUSTER,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": f"{_SASL}test_oauth_keys.py::"
    "test_a_new_key_is_found",
    "sasl.oauthbearer.scope.claim.name": f"{_SASL}test_oauth_keys.py::"
    "test_the_claim_of_the_scopes_is_the_one_that_is_set",
    "sasl.kerberos.principal.to.local.rules": "tests/unit/broker/security/kerberos/"
    "test_principal_rules.py::test_the_example_of_the_documentation",
    "sasl.kerberos.service.name": "tests/unit/broker/config/test_sasl.py::"
    "test_kerberos_without_what_it_needs",
    **dict.fromkeys(
        (
            *("sasl.kerberos.min.time.before.relogin", "sasl.kerberos.ticket.renew.jitter"),
            "sasl.kerberos.ticket.renew.window.factor",
        ),
        "tests/unit/broker/security/kerberos/test_login.py::"
        "test_a_new_ticket_is_taken_before_the_last_one_ends",
    ),
    **dict.fromkeys(
        (
            *("sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds"),
            *("sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter"),
            "sasl.oauthbearer.token.endpoint.url",
        ),
        f"{_SASL}test_broker_tokens.py::test_tokens_of_an_issuer_are_renewed",
    ),
    "security.inter.broker.protocol": "tests/integration/test_tls.py::"
    "test_without_a_certificate_there_is_no_way_in",
    "ssl.allow.dn.changes": f"{_TLS}test_listener_tls.py::test_another_name_can_be_allowed",
    "ssl.allow.san.changes": f"{_TLS}test_listener_tls.py::"
    "test_alternative_names_stay_unless_that_is_allowed",
    "ssl.endpoint.identification.algorithm": f"{_TLS}test_contexts.py::"
    "test_host_names_may_go_unchecked",
    "zookeeper.connect": f"{_ZOOKEEPER}test_tls_credentials_acls_a_path_and_a_dead_host",
    "zookeeper.set.acl": f"{_ZOOKEEPER}test_tls_credentials_acls_a_path_and_a_dead_host",
    "zookeeper.ssl.client.enable": f"{_ZOOKEEPER}test_tls_credentials_acls_a_path_and_a_dead_host",
    "zookeeper.ssl.keystore.location": f"{_ZOOKEEPER}"
    "test_tls_credentials_acls_a_path_and_a_dead_host",
    "zookeeper.ssl.truststore.location": f"{_ZOOKEEPER}"
    "test_tls_credentials_acls_a_path_and_a_dead_host",
    **dict.fromkeys(
        (
            *("zookeeper.ssl.cipher.suites", "zookeeper.ssl.enabled.protocols"),
            *("zookeeper.ssl.protocol", "zookeeper.ssl.endpoint.identification.algorithm"),
        ),
        f"{_LOGIN}test_versions_and_suites_are_those_of_the_settings",
    ),
    **dict.fromkeys(
        (
            *("zookeeper.ssl.keystore.password", "zookeeper.ssl.keystore.type"),
            *("zookeeper.ssl.truststore.password", "zookeeper.ssl.truststore.type"),
        ),
        f"{_LOGIN}test_stores_of_java",
    ),
    **dict.fromkeys(
        ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable"),
        f"{_LOGIN}test_checks_that_are_not_done_are_refused",
    ),
}
