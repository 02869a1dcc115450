"""Which alerts of deploy/prometheus/alerts.yml fire on the text of a scrape.

Evaluates the forms that the rules of the broker's state have, and says so of any other: selectors
with =, != and =~, `max`, `min` and `sum` with or without `by`, comparisons with a number, `or`.
A rule's `for` is not waited for.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yml"

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}
_AGGREGATE: dict[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min, "sum": sum}
_SELECTOR = r"(?P<name>[a-z_]+)\{(?P<matchers>[^}]*)\}"
_EXPRESSION = re.compile(
    rf"(?:(?P<aggregate>max|min|sum)(?: by \((?P<by>[^)]*)\))? ?\({_SELECTOR}\)"
    rf"|{_SELECTOR.replace('?P<', '?P<plain_')})"
    r" (?P<comparison><|>|==) (?P<number>-?[0-9.]+)"
)
_MATCHER = re.compile(r'\s*([a-z_]+)(=~|!=|=)"([^"]*)"\s*(?:,|$)')

Sample = tuple[str, dict[str, str], float]


class UnknownForm(Exception):
    """The evaluator does not know this form of an expression."""


def rules() -> dict[str, str]:
    """The expression of each alert by its name."""
    groups: Any = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"].strip() for group in groups for rule in group["rules"]}


def samples(scrape: str | None) -> list[Sample]:
    """The samples of one scraped broker as Prometheus keeps them; None: the scrape failed."""
    target = {"job": "ottla", "instance": "broker:9404"}
    if scrape is None:
        return [("up", target, 0.0)]
    found: list[Sample] = [("up", target, 1.0)]
    for family in text_string_to_metric_families(scrape):
        found += [(each.name, {**each.labels, **target}, each.value) for each in family.samples]
    return found


def fires(expression: str, scraped: Sequence[Sample]) -> bool:
    """Whether the expression has a result. Raises UnknownForm."""
    return any(_compares(part, scraped) for part in expression.split(" or "))


def firing(scrape: str | None, names: Sequence[str]) -> list[str]:
    """Those of the alerts `names` that fire, in their order."""
    scraped = samples(scrape)
    expressions = rules()
    return [name for name in names if fires(expressions[name], scraped)]


def _compares(expression: str, scraped: Sequence[Sample]) -> bool:
    found = _EXPRESSION.fullmatch(expression.strip())
    if found is None:
        raise UnknownForm(expression)
    part = found.groupdict()
    name = part["name"] or part["plain_name"]
    matchers = part["matchers"] if part["name"] else part["plain_matchers"]
    values: dict[tuple[str, ...], list[float]] = {}
    by = [label.strip() for label in (part["by"] or "").split(",") if label.strip()]
    for sample, labels, value in scraped:
        if sample == name and _matches(matchers, labels):
            group = tuple(labels.get(label, "") for label in by)
            if part["aggregate"] is None:
                group = tuple(f"{label}={text}" for label, text in sorted(labels.items()))
            values.setdefault(group, []).append(value)
    aggregate = _AGGREGATE[part["aggregate"] or "max"]
    compare = _COMPARE[part["comparison"]]
    return any(compare(aggregate(each), float(part["number"])) for each in values.values())


def _matches(matchers: str, labels: dict[str, str]) -> bool:
    if _MATCHER.sub("", matchers).strip():
        raise UnknownForm(matchers)
    for label, kind, text in _MATCHER.findall(matchers):
        value = labels.get(label, "")
        same = re.fullmatch(text, value) is not None if kind == "=~" else value == text
        if same == (kind == "!="):
            return False
    return True
