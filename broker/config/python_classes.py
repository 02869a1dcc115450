"""Classes of an installation that settings name: they are Python's here, where Kafka has Java's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from ottla.broker.config.errors import ConfigError

QUOTA_CALLBACK = "client.quota.callback.class"
#: What that class must have, and the module that documents it.
QUOTA_INTERFACE = (
    ("quota_metric_tags", "quota_limit", "update_quota", "remove_quota"),
    "ottla.quotas",
)


def find_class(setting: str, name: str, methods: Sequence[str], described_in: str) -> type[Any]:
    """The class `package.module.Class`. ConfigError when it cannot be imported, or lacks one of
    `methods`; `described_in` is the module that documents them."""
    module, _, class_name = name.rpartition(".")
    try:
        found = getattr(import_module(module), class_name) if module else None
    except Exception as error:  # the module is not ours: its import may raise anything
        raise ConfigError(
            f"{setting}: {name} is no Python class that can be imported here ({error}). Java "
            "classes cannot be loaded: write it in Python, or drop the setting."
        ) from error
    for method in methods:
        if not isinstance(found, type) or not callable(getattr(found, method, None)):
            raise ConfigError(
                f"{setting}: {name} is no class with a method {method} ({described_in})."
            )
    assert isinstance(found, type)
    return found


def load_class(
    setting: str,
    name: str,
    methods: Sequence[str],
    described_in: str,
    settings: Mapping[str, str],
) -> Any:
    """An object of the class, whose `configure`, if it has one, was called with `settings`.
    ConfigError when that is not possible."""
    try:
        made = find_class(setting, name, methods, described_in)()
        configure = getattr(made, "configure", None)
        if configure is not None:
            configure(dict(settings))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{setting}: {name} cannot be used: {error!r}.") from error
    return made


def check_quota_callback(name: str | None) -> None:
    """ConfigError when `client.quota.callback.class` names no class that can compute quotas."""
    if name:
        find_class(QUOTA_CALLBACK, name, *QUOTA_INTERFACE)
