"""The rows of docs/compatibility.md on secured listeners: which test shows them, for which clients.

The suites run against a listener without TLS and SASL. These clients run against others in tests.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One row of the table. `clients` are titles of suites."""

    text: str
    test: str
    clients: tuple[str, ...]


_CI = ("confluent-kafka", "kafka-python", "aiokafka", "Java client 3.9")
_SECURED = "tests/compat/test_secured_clients.py"
_SASL = "tests/compat/test_sasl_clients.py"

SECURED = {
    "tls": Row("TLS, the broker's certificate verified", _SECURED, _CI),
    "sasl-plain": Row("SASL PLAIN over TLS", _SECURED, _CI),
    "sasl-scram": Row("SASL SCRAM-SHA-256 and SCRAM-SHA-512", _SASL, _CI),
    "sasl-oauthbearer": Row(
        "SASL OAUTHBEARER", _SASL, ("confluent-kafka", "kafka-python", "aiokafka")
    ),
    "sasl-gssapi": Row(
        "SASL GSSAPI (Kerberos)",
        "tests/kerberos/scenarios.py",
        ("kafka-python", "kcat", "Java client 3.9"),
    ),
    "acls": Row("ACLs: an allowed topic is used, another one is refused", _SECURED, _CI),
    "acl-admin": Row(
        "ACLs added and removed by an admin request",
        "tests/integration/test_access_control.py",
        ("Kafka's tools 3.9",),
    ),
    "delegation-tokens": Row("delegation tokens", _SASL, ("Kafka's tools 3.9",)),
}
