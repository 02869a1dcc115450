"""Writes docs/configuration.md from the tables of settings: `python -m tools.configuration_page`.

No list of the settings in use can go stale: a setting is in use if the broker's code names it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path

from ottla.broker.config.broker_config import (
    DEFAULT_DATA_DIRECTORY,
    DEFAULT_LISTENERS,
    KAFKA_LISTENERS,
    BrokerConfig,
)
from ottla.broker.config.definitions import (
    CLUSTER_WIDE,
    PER_BROKER,
    READ_ONLY,
    Setting,
    broker_settings,
    dynamic_only_settings,
    topic_settings,
)
from ottla.broker.config.documentation import broker_documentation, topic_documentation
from ottla.broker.config.dynamic_rules import RENEWABLE
from ottla.broker.config.listeners import LISTENERS
from ottla.broker.config.unsupported import REFUSED
from tests.doubles.security_settings import PROBED, SHOWN, security_settings

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
WITHOUT_EFFECT = ROOT / "broker" / "config" / "settings" / "without_effect.txt"

_CHANGES = {READ_ONLY: "at start", PER_BROKER: "per broker", CLUSTER_WIDE: "per broker, cluster"}

# Where the defaults of a broker without a file differ from Kafka's, and why.
_DEVIATIONS = {
    "listeners": (
        f"`{DEFAULT_LISTENERS}` without ZooKeeper",
        "a lone broker without authentication is open to a network only if it is configured so; "
        f"with `zookeeper.connect` the default is Kafka's, `{KAFKA_LISTENERS}`",
    ),
    "log.dir": (f"`{DEFAULT_DATA_DIRECTORY}`", "some systems empty /tmp at boot"),
    "zookeeper.connect": (
        "none needed",
        "without it the znode tree is kept in the data directory, for one broker",
    ),
    "group.initial.rebalance.delay.ms": (
        "`0` without ZooKeeper",
        "a single broker serves tests and laptops, where no other member is about to join",
    ),
    "group.coordinator.rebalance.protocols": (
        "`classic,consumer,share`",
        "the protocols of Kafka 4; a cluster with a broker of Kafka 3.9 offers `classic` alone",
    ),
    "group.consumer.migration.policy": (
        "`bidirectional`",
        "as Kafka 4: groups move to the consumer protocol, and back, while they have members",
    ),
    "offsets.topic.replication.factor": (
        "capped at 1 without ZooKeeper",
        "there is one broker; the same applies to `transaction.state.log.replication.factor`",
    ),
}

_HEAD = """\
# Settings

Ottla knows every setting of Apache Kafka 3.9 in ZooKeeper mode by its name, with its type, its
default and its validation. A broker reads settings from the file, from the environment
(`KAFKA_LOG_DIRS` or `OTTLA_LOG_DIRS` is `log.dirs`) and from `--override name=value`; the later
value wins. It rejects an unknown name, a value of the wrong type and a value out of range with the
file, the line and the nearest valid name. (Kafka ignores unknown names with a warning, so that a
typing error can stay unnoticed.) `--ignore-unknown PREFIX`, which can be repeated, and
`OTTLA_IGNORE_UNKNOWN` (prefixes with commas) leave out unknown settings that begin with the prefix,
such as `confluent.`; AlterConfigs stores them at run time, without effect. An unknown `OTTLA_`
variable stops the start, too; an unknown `KAFKA_` variable is a warning, since images use such
names for more than settings. All that is wrong is reported at once, one line for each setting. It
also rejects a value that would protect the broker less than configured, such as a listener or an
authorizer that Ottla does not have. Settings of a listener
(`listener.name.<listener>.<setting>`, in lower case) are checked likewise, and the listener must be
one of `listeners`.

A value can be kept elsewhere (KIP-297): `${file:/path:key}`, `${directory:/path:file}` and
`${env:NAME}` with Kafka's own providers, which `config.providers` names:

```properties
config.providers=file
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
listener.name.clients.ssl.key.password=${file:/run/secrets/broker.properties:key}
```

`config.providers.<name>.param.allowed.paths` and `...param.allowlist.pattern` limit them. A
reference without a value stops the start; Kafka would take it literally.

Dynamic settings are stored in the znode tree, below `/config`, and brokers of a mixed cluster apply
each other's changes. `ottla configs set broker 1 name=value`, `ottla configs set cluster
name=value` and Kafka's `kafka-configs` change them.

`ottla configs describe KIND NAME --all --documentation` prints the meaning of each setting; any
admin client gets it with DescribeConfigs.

This page is generated from the definitions (`python -m tools.configuration_page`); a test compares.

- **changes**: *at start* only; at run time *per broker*; at run time *per broker* and for the
  whole *cluster*; or at run time *per listener*, with the prefix `listener.name.<listener>.`. What
  belongs to listeners is used for new connections, and for listeners that are added later; in Kafka
  an open listener takes only keys, trust and limits, and the rest waits for a restart.
- A change at run time is checked by the rules of a start, on all settings as they would be: what
  AlterConfigs accepts works, and the broker starts with it again. Counts of threads change to half
  or double of their value at once, as in Kafka. A limit of connections of 0 is rejected, also in
  the file: nobody could connect to raise it. What the znode tree holds and cannot be used (a value
  of another tool, a setting that is not dynamic) is ignored, as in Kafka, and is the fault
  `dynamic-setting-ignored`; `ottla configs unset broker 1 NAME` removes it, with `--offline` while
  the broker is down.
- **used**: *yes* if the setting has an effect; *no* if it is accepted without effect, because it
  belongs to a feature that Ottla does not have (KRaft, the JVM), or not yet: the broker names those
  that are set in one warning when it starts; *rejected* if the broker does not start with a value
  that Kafka would obey and Ottla cannot, because it would protect less than configured (Kafka's own
  classes for what is built in are accepted). For settings that protect something, the column is
  that of a table of tests: each value is set in the file, for one listener and at run time, and
  a client sees the difference (`tests/integration/test_settings_probe.py`).
- Secrets (type *password*) are in no response and in no log line. A broker with
  `password.encoder.secret` stores those that are set at run time encrypted, in Kafka's form: a
  broker of Kafka with the same secret reads them, and the other way round. It needs the extra
  `ottla[keystores]`. Without it they are accepted as references to `config.providers` only: every
  client that can read the znode tree could read them there. No other setting takes a reference at
  run time: its value would be readable.
- `listeners`, `advertised.listeners` and `listener.security.protocol.map` change per broker: a
  listener that is new is opened, with its own settings (keys, mechanisms, limits) from the same
  request; one that is not named any more is closed with its connections. A listener that stays open
  keeps its address and its security protocol.

"""


def page() -> str:
    """The whole text."""
    named = names_in_the_code()
    own = {name: each for name, each in broker_settings().items() if name.startswith("ottla.")}
    kafkas = {name: each for name, each in broker_settings().items() if name not in own}
    topics = topic_settings()
    named |= {each.broker_synonym for each in topics.values() if each.broker_synonym}
    used = sum(_used(name, named) == "yes" for name in kafkas)
    lines = [_HEAD + "## Defaults that differ from Kafka's\n"]
    lines += ["| setting | here | why |", "|---|---|---|"]
    lines += [f"| `{name}` | {here} | {why} |" for name, (here, why) in _DEVIATIONS.items()]
    lines += ["", "## Settings of Ottla\n", *_table(own, named)]
    lines += [f"\n## Broker settings\n\n{len(kafkas)} settings, {used} of them in use.\n"]
    idle = [name for name in sorted(kafkas) if _used(name, named) == "no"]
    lines += _table({name: kafkas[name] for name in kafkas if name not in idle}, named)
    names = ", ".join(f"`{name}`" for name in idle)
    lines += ["\nAccepted without effect (*used*: no); the command above prints their meaning:\n"]
    lines += textwrap.wrap(f"{names}.", 120, break_long_words=False, break_on_hyphens=False)
    lines += ["\n## Broker settings at run time only\n", *_table(dynamic_only_settings(), named)]
    lines += ["\n## Topic settings\n"]
    lines += ["| setting | meaning | type | default | valid | default from |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, each in sorted(topics.items()):
        origin = f"`{each.broker_synonym}`" if each.broker_synonym else ""
        lines.append(
            f"| `{name}` | {topic_documentation(name)} | {each.type} | {_default(each)} | "
            f"{_rule(each.rule)} | {origin} |"
        )
    return "\n".join(lines) + "\n"


def _table(settings: dict[str, Setting], named: set[str]) -> list[str]:
    lines = ["| setting | meaning | type | default | valid | changes | used |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, each in sorted(settings.items()):
        lines.append(
            f"| `{name}` | {broker_documentation(name)} | {each.type} | {_default(each)} | "
            f"{_rule(each.rule)} | {_change(each)} | {_used(name, named)} |"
        )
    return lines


def _used(name: str, named: set[str]) -> str:
    if name in REFUSED:
        return "rejected"
    if name in _SECURITY:
        # A setting that protects something is used if a test shows its effect.
        return "yes" if name in PROBED or name in SHOWN else "no"
    return "yes" if name in named else "no"


def _change(setting: Setting) -> str:
    if setting.name in RENEWABLE:
        return "per listener"
    if setting.name in LISTENERS:
        return "per broker"
    return _CHANGES[setting.mode]


def unused() -> list[str]:
    """The settings that are accepted without effect, in the order of their names."""
    named = names_in_the_code()
    named |= {each.broker_synonym for each in topic_settings().values() if each.broker_synonym}
    return [name for name in sorted(broker_settings()) if _used(name, named) == "no"]


def _default(setting: Setting) -> str:
    if setting.default is None:
        return ""
    return f"`{setting.default}`" if setting.default else "empty"


def _rule(rule: str) -> str:
    return rule.replace("of ", "", 1).replace(",", ", ") if rule.startswith("of ") else rule


# Names that the code makes of two parts.
_PUT_TOGETHER = (
    *("ssl.keystore.type", "ssl.truststore.type", "zookeeper.ssl.cipher.suites"),
    *("zookeeper.ssl.enabled.protocols", "zookeeper.ssl.keystore.password"),
    *("zookeeper.ssl.keystore.type", "zookeeper.ssl.truststore.type"),
    *("zookeeper.ssl.truststore.password", "sasl.oauthbearer.scope.claim.name"),
)

_SECURITY = frozenset(security_settings((*broker_settings(), *dynamic_only_settings())))

# Tables of names that say nothing about their use.
_TABLES = ("unsupported.py", "listeners.py", "dynamic_rules.py")


def names_in_the_code() -> set[str]:
    """Settings that the broker reads as an attribute or by name."""
    known = {*broker_settings(), *dynamic_only_settings()}
    attributes = {name.replace(".", "_"): name for name in known}
    found = set(_PUT_TOGETHER)
    for part in BrokerConfig.__mro__:
        annotated = inspect.get_annotations(part)
        found |= {attributes[each] for each in annotated if each in attributes}
    for path in sorted((ROOT / "broker").rglob("*.py")):
        if path.parent.name == "config" and path.name in _TABLES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} & known
    return found


def without_effect_file() -> str:
    """The settings that the broker names in a warning when it starts, as a file."""
    head = "# Settings that are accepted without effect (python -m tools.configuration_page)\n"
    return head + "".join(f"{name}\n" for name in unused())


def main() -> None:
    """Writes the page and the broker's own list of settings without effect."""
    WITHOUT_EFFECT.write_text(without_effect_file(), encoding="ascii")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
