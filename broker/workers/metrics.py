"""The metrics of several workers in one text of Prometheus.

`merge` keeps every sample and names its worker by a label, so that a query adds up what it means
to (`sum without (worker) (...)`). `total` adds up, for programs that expect one broker: counters,
histograms and most gauges are sums; gauges of a time, an age, a ratio or a longest are maxima.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Parts of the names of gauges of which a sum means nothing.
_NO_SUM = re.compile(
    r"_seconds$|_ratio$|_info$|_max$|_lag$|_time|_version|_ready$|_connected$|_percent|_epoch|"
    r"process_(max_fds|start_time)|expires"
)

# Family -> (HELP and TYPE lines, kind, samples).
Family = tuple[list[str], str, list[tuple[str, str, str]]]


def own_metrics(workers: Iterable[tuple[int, bool, int]]) -> str:
    """The supervisor's own: rows of number, whether it serves clients, and restarts."""
    rows = list(workers)
    lines = [
        "# HELP ottla_workers Workers that the supervisor of this machine runs.",
        "# TYPE ottla_workers gauge",
        f"ottla_workers {float(len(rows))!r}",
        "# HELP ottla_worker_up Whether a worker serves clients.",
        "# TYPE ottla_worker_up gauge",
        *(f'ottla_worker_up{{worker="{number}"}} {float(up)!r}' for number, up, _ in rows),
        "# HELP ottla_worker_restarts_total Starts of a worker after it had ended by itself.",
        "# TYPE ottla_worker_restarts_total counter",
        *(
            f'ottla_worker_restarts_total{{worker="{number}"}} {float(restarts)!r}'
            for number, _, restarts in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def merge(texts: Mapping[int, bytes], own: str) -> bytes:
    """Every sample of every worker with the label `worker`, by family; `own` behind them."""
    families = _families(texts)
    lines: list[str] = []
    for heads, _, samples in families.values():
        lines += heads
        for worker, name, value in samples:
            metric, brace, labels = name.partition("{")
            more = f",{labels}" if brace else "}"
            lines.append(f'{metric}{{worker="{worker}"{more} {value}')
    return ("\n".join(lines) + "\n" + own).encode() if lines else own.encode()


def total(texts: Mapping[int, bytes], own: str) -> bytes:
    """One sample for the same sample of all workers; `own` behind them."""
    families = _families(texts)
    lines: list[str] = []
    for family, (heads, kind, samples) in families.items():
        lines += heads
        adds_up = kind in ("counter", "histogram", "summary") or not _NO_SUM.search(family)
        found: dict[str, float] = {}
        for _, name, text in samples:
            value = float(text)
            known = found.get(name)
            if known is None:
                found[name] = value
            else:
                found[name] = known + value if adds_up else max(known, value)
        lines += [f"{name} {value!r}" for name, value in found.items()]
    return ("\n".join(lines) + "\n" + own).encode() if lines else own.encode()


def _families(texts: Mapping[int, bytes]) -> dict[str, Family]:
    """By name, in the order of the first text that has it."""
    families: dict[str, Family] = {}
    for worker, text in texts.items():
        current: Family = ([], "", [])
        for line in text.decode(errors="replace").splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                known = families.get(family)
                current = families.setdefault(family, ([line], "", [])) if known is None else known
            elif line.startswith("# TYPE "):
                _, _, family, kind = line.split(" ", 3)
                heads, known_kind, samples = families.get(family, ([], "", []))
                if not known_kind:
                    current = families[family] = ([*heads, line], kind, samples)
                else:
                    current = families[family]
            elif line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                current[2].append((str(worker), name, value))
    return families
