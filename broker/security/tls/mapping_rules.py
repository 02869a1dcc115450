"""`ssl.principal.mapping.rules`: from the name of a certificate to a user.

Mirrors Kafka's `SslPrincipalMapper`, with its oddities: how a text is divided into rules, empty
rules, and that a replacement is done for every match in a name that matches as a whole
(`RULE:(.*)/$1;/` writes two semicolons, for the empty match at the end).
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.security.java_regex.case import UnclearCase, changed_case
from ottla.broker.security.java_regex.machine import TooManySteps
from ottla.broker.security.java_regex.pattern import JavaPattern, ReplacementError
from ottla.broker.security.java_regex.tree import PatternError

SETTING = "ssl.principal.mapping.rules"

# A setting of one megabyte would be divided for a second; this is some hundred rules.
_MAX_CHARACTERS = 65_536
_STEPS_OF_A_CHARACTER = 200

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(?:.*?)"
_DIVIDED = JavaPattern(rf"\s*({_RULE})\s*(?:,\s*|$)")
_PARSED = JavaPattern(rf"(?:{_RULE})")

# Java reads it as an `int`.
_MAX_DIGITS = 9

# What Java's String.trim removes.
_TRIMMED = "".join(map(chr, range(0x21)))


class NoMatchingRule(ValueError):
    """No rule makes a user of a name, or the one that does cannot be applied."""


class _Rule(NamedTuple):
    """`pattern` is None for DEFAULT, the name as it is."""

    pattern: JavaPattern | None
    replacement: str
    case: str


class MappingRules:
    """The rules of a listener."""

    def __init__(self, text: str | None) -> None:
        """Raises ConfigError naming the rule and the position in it."""
        text = "DEFAULT" if text is None else text.strip(_TRIMMED)
        if len(text) > _MAX_CHARACTERS:
            raise ConfigError(f"{SETTING} has more than {_MAX_CHARACTERS} characters.")
        try:
            self._rules = [rule for each in _divided(text) if (rule := _parsed(each)) is not None]
        except (TooManySteps, ReplacementError):
            raise ConfigError(f"{SETTING}: {text!r:.200} cannot be divided into rules.") from None

    def user_of(self, name: str) -> str:
        """The user of a certificate's name. Raises NoMatchingRule."""
        for rule in self._rules:
            if rule.pattern is None:
                return name
            try:
                if rule.pattern.matches(name):
                    replacement = _with_literals(rule.replacement, rule.pattern.group_count)
                    return changed_case(rule.pattern.replace_all(name, replacement), rule.case)
            except (TooManySteps, ReplacementError, UnclearCase) as error:
                raise NoMatchingRule(
                    f"{SETTING}: the pattern {rule.pattern.pattern!r:.200} cannot be applied to "
                    f"the name {name!r:.200}: {error}"
                ) from None
        raise NoMatchingRule(f"no rule of {SETTING} applies to the name {name}")


def _divided(text: str) -> list[str]:
    found = _DIVIDED.find_all(text, len(text) * _STEPS_OF_A_CHARACTER + 1000)
    spans = [groups[1] for groups in found]
    return [text[span[0] : span[1]] for span in spans if span is not None]


def _parsed(rule: str) -> _Rule | None:
    """None for an empty rule, which Kafka ignores."""
    found = _PARSED.match_prefix(rule, len(rule) * _STEPS_OF_A_CHARACTER + 1000)
    whole, default, pattern, replacement, case = found or [(0, 0), None, None, None, None]
    end = whole[1] if whole is not None else 0
    if end != len(rule):
        raise ConfigError(
            f"{SETTING}: the rule {rule!r:.200} is neither DEFAULT nor "
            "RULE:pattern/replacement/ with L or U behind it for lower or upper case: "
            f"{rule[end:]!r:.100} at position {end} belongs to neither."
        )
    if default is not None:
        return _Rule(None, "", "")
    if pattern is None or replacement is None or case is None:
        return None
    try:
        compiled = JavaPattern(rule[slice(*pattern)])
    except PatternError as error:
        raise ConfigError(
            f"{SETTING}: the pattern of the rule {rule!r:.200} cannot be used: {error.reason} at "
            f"position {pattern[0] + error.position}."
        ) from None
    return _Rule(compiled, rule[slice(*replacement)], rule[slice(*case)])


def _with_literals(replacement: str, groups: int) -> str:
    """Escapes the `$` of numbers without a group, if the pattern has groups at all.

    As Kafka does it: a second number is escaped one place too far left for each one before it.
    """
    if groups == 0:
        return replacement
    value = replacement
    for start, number in _references(replacement):
        if number.startswith("0"):
            continue
        if len(number) > _MAX_DIGITS:
            raise ReplacementError(f"${number:.20} in the replacement is no number of a group")
        group = int(number)
        while group > groups and group >= 10:
            group //= 10  # the digits behind a number that is a group are text
        if group > groups:
            value = f"{value[:start]}\\{value[start:]}"
    return value


def _references(replacement: str) -> list[tuple[int, str]]:
    """Each `$` with digits behind it, and where it stands."""
    found: list[tuple[int, str]] = []
    for start, character in enumerate(replacement):
        if character != "$":
            continue
        end = start + 1
        while end < len(replacement) and replacement[end] in "0123456789":
            end += 1
        if end > start + 1:
            found.append((start, replacement[start + 1 : end]))
    return found
