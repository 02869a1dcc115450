"""Listeners with SASL whose logins stand in a JAAS file (`java.security.auth.login.config`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.doubles.sasl_talk import LOGIN, PLAIN_LOGIN

#: In the order of the setting `listeners`: one with a section of its own, one without, and one with
#: a section of its own beside a setting for PLAIN.
JAAS_LISTENERS = ("OWN", "SHARED", "SET")

_FILE = """
/* The logins of a broker. */
KafkaServer {
    org.apache.kafka.common.security.scram.ScramLoginModule required;
    org.apache.kafka.common.security.plain.PlainLoginModule required
        user_anna="shared" user_dora="" user_emil=bare // not quoted
        user_fred="a\\"b\\\\c\\101;{}" user_gina="${where}${/}x" user_twice="first";
    org.apache.kafka.common.security.plain.PlainLoginModule optional
        user_twice="second" user_late="late";
};
own.KafkaServer {
    org.apache.kafka.common.security.plain.PlainLoginModule REQUIRED user_anna="own";
};
set.KafkaServer {
    org.apache.kafka.common.security.plain.PlainLoginModule required user_anna="file";
};
OWN.KafkaServer {
    org.apache.kafka.common.security.plain.PlainLoginModule required user_anna="upper";
};
KafkaClient {
    org.apache.kafka.common.security.plain.PlainLoginModule required user_anna="client";
};
"""


def settings_beside_jaas_file(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings that add the listeners."""
    more: dict[str, object] = {
        f"listener_name_{name.lower()}_sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256"
        for name in JAAS_LISTENERS
    }
    more["listeners"] = ",".join(
        (str(settings["listeners"]), *(f"{name}://127.0.0.1:0" for name in JAAS_LISTENERS))
    )
    more["listener_security_protocol_map"] = ",".join(
        (
            str(settings["listener_security_protocol_map"]),
            *(f"{name}:SASL_PLAINTEXT" for name in JAAS_LISTENERS),
        )
    )
    more["listener_name_set_plain_sasl_jaas_config"] = f'{PLAIN_LOGIN} user_anna="setting";'
    return more


def write_jaas_file(directory: Path) -> list[str]:
    """The options of a JVM that reads the file."""
    path = directory / "kafka.jaas"
    path.write_text(_FILE)
    assert LOGIN in _FILE
    return [f"-Djava.security.auth.login.config={path}", "-Dwhere=there"]
