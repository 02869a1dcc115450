"""Readings as Prometheus text.

The Prometheus library makes an object of every sample first, which takes about ten times as long;
with the lag of thousands of groups a scrape would take seconds of a core.
"""

from collections.abc import Iterable

from ottla.broker.metrics.statistics import Metric, Reading

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(readings: Iterable[tuple[Metric, Reading]]) -> bytes:
    """The text format of version 0.0.4, one family after the other."""
    lines: list[str] = []
    for metric, reading in readings:
        name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
        lines.append(f"# HELP {name} {metric.help.translate(_ESCAPES)}")
        lines.append(f"# TYPE {name} {metric.kind}")
        if isinstance(reading, dict):
            _add_labelled(lines, name, metric.labels, reading)
        else:
            lines.append(f"{name} {float(reading)!r}")
    lines.append("")
    return "\n".join(lines).encode()


def _add_labelled(
    lines: list[str], name: str, labels: tuple[str, ...], reading: dict[tuple[str, ...], float]
) -> None:
    # name{first="%s",second="%s"} %r
    template = name + "{" + ",".join(f'{label}="%s"' for label in labels) + "} %r"
    escaped: dict[str, str] = {}
    for values, value in reading.items():
        texts = []
        for text in values:
            found = escaped.get(text)
            if found is None:
                found = escaped[text] = text.translate(_ESCAPES)
            texts.append(found)
        lines.append(template % (*texts, float(value)))
