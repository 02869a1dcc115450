"""Debezium for PostgreSQL in a worker of Kafka Connect."""

from __future__ import annotations

import json
from typing import Any

from tests.compat.ecosystem.clients import read_topic, read_until, topic_settings
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.connect_worker import RUNNING, Worker
from tests.compat.ecosystem.jars import library
from tests.compat.ecosystem.model import Program, Script
from tests.compat.ecosystem.postgres import Postgres, start_postgres
from tests.doubles.apache_kafka import kafka_library

VERSION = "2.7.4.Final"
ROWS = 50
TOPIC = "shop.public.orders"
# Connect's own jars are those of the worker.
_NO_KAFKA = (
    "<exclusions><exclusion><groupId>org.apache.kafka</groupId><artifactId>*</artifactId>"
    "</exclusion></exclusions>"
)


def _run(script: Script) -> None:
    connector = ("io.debezium", "debezium-connector-postgres", VERSION, _NO_KAFKA)
    libraries = [kafka_library(), library(f"debezium-{VERSION}", [connector])]
    converter = "org.apache.kafka.connect.json.JsonConverter"
    settings = {
        "key.converter": converter,
        "value.converter": converter,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }
    with (
        start_postgres(script.directory / "postgres") as database,
        script.start_cluster() as cluster,
    ):
        place = script.directory / "worker"
        worker = Worker(place, libraries, cluster.bootstrap, settings)
        try:
            worker.start()
            _steps(script, cluster, database, worker)
        finally:
            worker.kill()


def _steps(script: Script, cluster: Cluster, database: Postgres, worker: Worker) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)", _insert(0, ROWS))

    def changes() -> list[dict[str, Any]]:
        records = read_topic(cluster.bootstrap, TOPIC)
        return [json.loads(record.value) for record in records if record.value]

    def wait_for(count: int) -> None:
        read_until(cluster.bootstrap, TOPIC, lambda found: len(found) >= count)

    with script.check("a snapshot of the table, in a topic that Connect creates as configured"):
        worker.create(
            "orders",
            connector_class="io.debezium.connector.postgresql.PostgresConnector",
            plugin_name="pgoutput",
            database_hostname="127.0.0.1",
            database_port=str(database.port),
            database_user="postgres",
            database_password="postgres",
            database_dbname="postgres",
            topic_prefix="shop",
            table_include_list="public.orders",
            topic_creation_default_replication_factor="1",
            topic_creation_default_partitions="1",
            topic_creation_default_cleanup_policy="compact",
        )
        worker.wait_for_states("orders", RUNNING, RUNNING)
        wait_for(ROWS)
        assert [change["op"] for change in changes()] == ["r"] * ROWS
        assert topic_settings(cluster.bootstrap, TOPIC)["cleanup.policy"] == "compact"
    with script.check(
        "inserts, updates and deletes in the order of the database, a tombstone last"
    ):
        database.execute(_insert(ROWS, 10))
        database.execute("UPDATE orders SET item = 'new' WHERE id = 3")
        database.execute("DELETE FROM orders WHERE id = 4")
        wait_for(ROWS + 13)
        assert [change["op"] for change in changes()[ROWS:]] == ["c"] * 10 + ["u", "d"]
        assert read_topic(cluster.bootstrap, TOPIC)[-1].value == ""
    with script.check("the worker is killed: changes made meanwhile are not lost"):
        worker.kill()
        database.execute(_insert(1000, 10))
        worker.start()
        worker.wait_for_states("orders", RUNNING, RUNNING)
        wait_for(ROWS + 23)
        rows = {change["after"]["id"] for change in changes() if change["after"]}
        assert set(range(1000, 1010)) <= rows


def _insert(start: int, count: int) -> str:
    return (
        "INSERT INTO orders SELECT n, 'item ' || n "
        f"FROM generate_series({start}, {start + count - 1}) AS n"
    )


PROGRAM = Program(
    "debezium",
    "Debezium, PostgreSQL",
    VERSION,
    ("java", "mvn"),
    _run,
    ("The connector in a worker of Kafka Connect 3.9.1, with PostgreSQL of Debian.",),
)
