"""Writes docs/metrics.md from what a broker serves: `python -m tools.metrics_page`.

The metrics are those of a broker that is started for this; Kafka's names are in
tools/jmx_to_metrics.txt.
"""

from __future__ import annotations

import re
import tempfile
import urllib.request
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ottla.broker.metrics.statistics import TIME_BUCKETS, MetricsRegistry
from ottla.broker.metrics.telemetry.exported import MAX_SERIES
from ottla.broker.metrics.topic_statistics import MAX_TOPICS, OTHER_TOPICS
from ottla.broker.share.metrics import MAX_GROUPS, OTHER_GROUPS
from ottla.broker.testing.embedded import Broker
from ottla.broker.workers.metrics import own_metrics

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "metrics.md"
MAPPING = ROOT / "tools" / "jmx_to_metrics.txt"

_HEAD = f"""\
# Metrics

A broker serves its metrics to Prometheus on `/metrics`, on the HTTP port that
`ottla.metrics.address` opens (`ottla.metrics.address=:9404`). The names follow Prometheus'
conventions: base units (bytes, seconds), `_total` for what only grows. A rate is computed by the
query, so where Kafka has a rate (`PerSec`), there is a counter here.
[operations.md](operations.md) has alerts and a dashboard that use them.

This page is generated from a running broker and from the names of a running Apache Kafka 3.9.1
(`python -m tools.metrics_page`); a test compares.

- Series by topic (label `topic`): at most {MAX_TOPICS:,} topics on one broker, as Prometheus keeps
  each in its memory. The others are counted together as `{OTHER_TOPICS}`. As in Kafka, the counters
  of a topic end with its last replica on the broker.
- There are no series by partition except for the lag of groups, and none by client except for the
  metrics that clients push (KIP-714; at most {MAX_SERIES:,}): they would have no bound.
  The console, `ottla topics describe` and `ottla log-dirs --partitions` show them.
- Histograms have the buckets {", ".join(f"{each:g}" for each in TIME_BUCKETS)} seconds.
- A broker reads its metrics in slices of 2 ms, between which it serves clients, and makes the text
  in a worker thread.
- Metrics of the active controller (`ottla_controller_...`) have no value on the other brokers.
- Metrics of share groups (`ottla_share_...`) are served where share groups are enabled
  ([share-groups.md](share-groups.md)); for those by group, at most {MAX_GROUPS:,} groups, and the
  others together as `{OTHER_GROUPS}`.
- Metrics of remote storage (`ottla_remote_...`) are served where tiered storage is enabled
  ([tiered-storage.md](tiered-storage.md)).
- Clients can push their own metrics (KIP-714): `ottla_client_...`, see [kips.md](kips.md).

"""

_WORKERS_HEAD = """
## Metrics of several workers

`ottla start --workers N` has one HTTP port for all workers ([workers.md](workers.md)). `/metrics`
has every metric above with the label `worker`; `/metrics/total` adds the workers up. Both have
these of the supervisor, too:

| metric | type | labels | meaning |
|---|---|---|---|"""

_KAFKA_HEAD = """
## From Kafka's names

For a dashboard that was made for Kafka with the JMX exporter. `*` stands for any text, `[5m]` for
the range of your rate. `[,topic=*]` stands for two names: the query is that of the topics, and
`sum(...)` of it that of the name without a topic. The exporter makes names such as
`kafka_server_brokertopicmetrics_bytesin_total` of these, depending on its rules.
"""

_BY_TOPIC = ",topic=*"
_METRIC = re.compile(r"\b(?:ottla|process)_[a-z_]+\b")


class Row(NamedTuple):
    """A line of the mapping. `query` is empty when there is nothing; the remark says why."""

    section: str
    name: str
    query: str
    remark: str


class Served(NamedTuple):
    """A metric as a broker serves it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def mapping() -> list[Row]:
    """The rows of tools/jmx_to_metrics.txt."""
    rows = []
    section = ""
    for line in MAPPING.read_text(encoding="ascii").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line and not line.startswith("#"):
            name, query, remark = (part.strip() for part in line.split("|"))
            query = "" if query == "-" else query.replace("{t}", "[5m]")
            rows.append(Row(section, name, query, remark))
    return rows


def row_of(name: str, rows: list[Row]) -> Row | None:
    """The first row for one of Kafka's names."""
    return next((row for row in rows if fnmatchcase(name, row.name)), None)


def metrics_in(query: str) -> set[str]:
    """The metrics that a query reads, without the suffixes of a histogram's parts."""
    found = set(_METRIC.findall(query))
    return {re.sub(r"^(.*_seconds)_(?:bucket|sum|count)$", r"\1", name) for name in found}


def served() -> list[Served]:
    """The metrics of a broker, in its order."""
    with (
        tempfile.TemporaryDirectory() as store,
        Broker(
            ottla_metrics_address="127.0.0.1:0",
            group_coordinator_rebalance_protocols="classic,consumer,share",
            remote_log_storage_system_enable=True,
            remote_log_storage_manager_class_name="aiven",
            rsm_config_storage_backend_class="filesystem",
            rsm_config_storage_root=store,
            rsm_config_chunk_size=1024,
        ) as broker,
    ):
        url = f"http://127.0.0.1:{broker.server.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            text = response.read().decode()
        http = broker.server._http
        registry = None if http is None else http.registry
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels = _labels(registry)
    return [Served(name, kinds[name], labels.get(name, ()), helps[name]) for name in kinds]


def served_by_supervisor() -> list[Served]:
    """The metrics that the supervisor of several workers adds."""
    text = own_metrics([(0, True, 0)])
    found = []
    for name, meaning in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
        [kind] = re.findall(rf"^# TYPE {name} (\S+)$", text, re.MULTILINE)
        [labels] = re.findall(rf"^{name}(?:{{(.*)}})? \S+$", text, re.MULTILINE)
        found.append(Served(name, kind, tuple(re.findall(r"(\w+)=", labels)), meaning))
    return found


def _labels(registry: MetricsRegistry | None) -> dict[str, tuple[str, ...]]:
    assert registry is not None, "the broker has an HTTP port"
    return {metric.exposed_name: metric.labels for metric in registry.metrics}


def page(metrics: list[Served]) -> str:
    """The whole text."""
    rows = mapping()
    kafkas: dict[str, list[str]] = {}
    for row in rows:
        for name in metrics_in(row.query):
            kafkas.setdefault(name, []).append(_short(row.name))
    lines = [_HEAD + "## What a broker serves\n"]
    lines += ["| metric | type | labels | meaning | in Kafka |", "|---|---|---|---|---|"]
    for metric in sorted(metrics):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(kafkas.get(metric.name, ())))
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} | {names} |")
    lines.append(_WORKERS_HEAD)
    for metric in served_by_supervisor():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    lines.append(_KAFKA_HEAD)
    for section in dict.fromkeys(row.section for row in rows):
        lines += [
            f"### {section}\n",
            "| Kafka's JMX name | PromQL here | remark |",
            "|---|---|---|",
        ]
        for row in _merged([row for row in rows if row.section == section]):
            query = f"`{row.query}`" if row.query else "not offered"
            lines.append(f"| `{row.name}` | {query} | {row.remark} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _merged(rows: list[Row]) -> list[Row]:
    """One row where the metric of a topic and the sum over all topics differ in nothing else."""
    by_name = {row.name: row for row in rows}
    merged = []
    for row in rows:
        whole = by_name.get(row.name.removesuffix(_BY_TOPIC))
        part = by_name.get(f"{row.name}{_BY_TOPIC}")
        if whole is not row and whole is not None and _is_sum(whole, row):
            merged.append(row._replace(name=f"{whole.name}[{_BY_TOPIC}]"))
        elif part is None or not _is_sum(row, part):
            merged.append(row)
    return merged


def _is_sum(whole: Row, part: Row) -> bool:
    return whole.query == f"sum({part.query})" and whole.remark == part.remark


def _short(name: str) -> str:
    """The part of a JMX name that is not the same for a whole section."""
    kind = name.partition(":type=")[2]
    match = re.search(r"name=([^,]*)", kind)
    return match[1] if match and match[1] != "*" else kind


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(served()), encoding="utf-8")


if __name__ == "__main__":
    main()
