"""Kerberos principals to the names of users (`sasl.kerberos.principal.to.local.rules`).

Mirrors Kafka's `KerberosShortNamer`: the first rule that fits decides. `DEFAULT` takes the first
component of a principal of the default realm; `RULE:[n:format](match)s/from/to/g/L` is for
principals of n components, as in MIT Kerberos. The expressions are Java's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ottla.broker.security.java_regex.case import UnclearCase, changed_case
from ottla.broker.security.java_regex.machine import TooManySteps
from ottla.broker.security.java_regex.pattern import JavaPattern, ReplacementError
from ottla.broker.security.java_regex.tree import PatternError

_RULE = re.compile(
    r"DEFAULT|RULE:\[(?P<components>[0-9]+):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<repeat>g)?)?/?(?P<case>[LU])?"
)
_PRINCIPAL = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_PARAMETER = re.compile(r"\$([0-9]*)")
# More components than a principal has; a longer number is a typing error.
_MAX_DIGITS = 3


class NoMatchingRule(ValueError):
    """No rule makes a user of a principal."""


class _Rule(NamedTuple):
    """`components` is None for DEFAULT."""

    components: int | None
    format: str = ""
    match: JavaPattern | None = None
    pattern: JavaPattern | None = None
    replacement: str = ""
    repeat: bool = False
    case: str = ""


class PrincipalRules:
    """The rules of a listener."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        """Raises ValueError for a rule that is not valid."""
        self._rules = [_parse(rule) for rule in rules]
        self._default_realm = default_realm

    def short_name(self, principal: str) -> str:
        """The user of a principal. Raises NoMatchingRule."""
        parts = _PRINCIPAL.fullmatch(principal)
        if parts is None:
            if "@" in principal:
                raise NoMatchingRule(f"malformed Kerberos name {principal!r:.200}")
            return principal
        service, host, realm = parts.groups()
        parameters = [realm, service] if host is None else [realm, service, host]
        for rule in self._rules:
            found = self._apply(rule, parameters)
            if found is not None:
                return found
        raise NoMatchingRule(
            f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal!r:.200}"
        )

    def _apply(self, rule: _Rule, parameters: list[str]) -> str | None:
        if rule.components is None:
            found = parameters[1] if parameters[0] == self._default_realm else None
        else:
            found = _transformed(rule, parameters)
        if found is None:
            return None
        if "/" in found or "@" in found:
            raise NoMatchingRule(f"a rule makes the name {found!r:.200}, which has / or @ in it")
        try:
            return changed_case(found, rule.case)
        except UnclearCase as error:
            raise NoMatchingRule(str(error)) from None


def _transformed(rule: _Rule, parameters: list[str]) -> str | None:
    if len(parameters) - 1 != rule.components:
        return None
    base = replace_parameters(rule.format, parameters)
    try:
        if rule.match is not None and not rule.match.matches(base):
            return None
        if rule.pattern is None:
            return base
        replace = rule.pattern.replace_all if rule.repeat else rule.pattern.replace_first
        return replace(base, rule.replacement)
    except (TooManySteps, ReplacementError) as error:
        raise NoMatchingRule(f"a rule cannot be applied to {base!r:.200}: {error}") from None


def replace_parameters(text: str, parameters: Sequence[str]) -> str:
    """`$0` is the realm, `$1` the first component, ... Raises NoMatchingRule."""

    def value(match: re.Match[str]) -> str:
        digits = match[1]
        if not digits or len(digits) > _MAX_DIGITS or int(digits) >= len(parameters):
            raise NoMatchingRule(f"{match.group()!r} in {text!r:.100} is no part of the principal")
        return parameters[int(digits)]

    return _PARAMETER.sub(value, text)


def _parse(text: str) -> _Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is neither DEFAULT nor RULE:[n:format](match)s/from/to/ with g, L or U"
        )
    if found["components"] is None:
        return _Rule(None)
    if len(found["components"]) > _MAX_DIGITS:
        raise ValueError(f"{text!r} is for {found['components']} components")
    return _Rule(
        int(found["components"]),
        found["format"],
        _compiled(found, "match"),
        _compiled(found, "pattern"),
        found["replacement"] or "",
        found["repeat"] is not None,
        found["case"] or "",
    )


def _compiled(rule: re.Match[str], part: str) -> JavaPattern | None:
    pattern = rule[part]
    if pattern is None:
        return None
    try:
        return JavaPattern(pattern)
    except PatternError as error:
        raise ValueError(
            f"the pattern {pattern!r:.200} of {rule.string!r:.200} cannot be used: {error.reason} "
            f"at position {rule.start(part) + error.position}"
        ) from None
