"""A Flink job from a topic to a topic, exactly once: `flink_job.py JAR BOOTSTRAP CHECKPOINTS`.

Runs in an environment of its own (flink.py) with PyFlink; ends when it is killed.
"""

from __future__ import annotations

import sys

from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

_TABLE = """CREATE TABLE {name} (number BIGINT) WITH (
    'connector' = 'kafka', 'topic' = '{topic}', 'format' = 'json',
    'properties.bootstrap.servers' = '{bootstrap}', {options})"""


def main() -> None:
    jar, bootstrap, checkpoints = sys.argv[1:]
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.add_jars(f"file://{jar}")
    environment.set_parallelism(1)
    environment.enable_checkpointing(1000)
    tables = StreamTableEnvironment.create(environment)
    settings = tables.get_config()
    settings.set("execution.checkpointing.dir", f"file://{checkpoints}")
    settings.set("restart-strategy.type", "fixed-delay")
    settings.set("restart-strategy.fixed-delay.attempts", "100")
    settings.set("restart-strategy.fixed-delay.delay", "1 s")
    source = (
        "'properties.group.id' = 'flink', 'scan.startup.mode' = 'group-offsets', "
        "'properties.auto.offset.reset' = 'earliest'"
    )
    sink = (
        "'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'flink', "
        "'properties.transaction.timeout.ms' = '600000'"
    )
    for name, topic, options in (("source", "numbers", source), ("sink", "doubled", sink)):
        tables.execute_sql(
            _TABLE.format(name=name, topic=topic, bootstrap=bootstrap, options=options)
        )
    tables.execute_sql("INSERT INTO sink SELECT number * 2 FROM source").wait()


if __name__ == "__main__":
    main()
