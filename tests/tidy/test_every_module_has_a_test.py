"""Every source module has a test that names it, or a line here that says which test runs it.

A test names a module when it imports it, or something in it, or when its own path mirrors the
module's: `tests/unit/broker/net/test_output.py` is about `broker/net/output.py`. What only
stands in for a test (`tests/doubles`) does not count.
"""

from __future__ import annotations

from pathlib import Path

from tests.tidy.source_tree import ROOT, imported_names, modules

# Written by the generator; the codecs of all of them are compared with Kafka's own classes.
GENERATED = "ottla.protocol.messages"

COMMAND_LINE = "is a command of `ottla`, which runs whole"
WHOLE_BROKER = "is what a whole broker is put together from"
BESIDE_KAFKA = "is compared with Apache Kafka, request by request"
THROUGH_ANOTHER = "is a part of the module that the test names"
WHOLE_QUERY = "is what Spark runs in a query"

# module: (why no test names it, the test that runs it)
EXCEPTIONS = {
    "ottla.broker.server.znode_store": (
        WHOLE_BROKER,
        "tests/integration/test_zookeeper_security.py",
    ),
    "ottla.broker.cluster.remote_topics": (WHOLE_BROKER, "tests/integration/test_cluster.py"),
    "ottla.broker.config.number_rules": (
        THROUGH_ANOTHER,
        "tests/unit/broker/config/test_broker_config.py",
    ),
    "ottla.broker.testing.cluster": (
        WHOLE_BROKER,
        "tests/integration/test_embedded_cluster.py",
    ),
    "ottla.cli.group_members": (COMMAND_LINE, "tests/integration/test_cli_groups.py"),
    "ottla.cli.zookeeper_family": (COMMAND_LINE, "tests/unit/cli/test_help.py"),
    "ottla.broker.coordination.znode_offsets": (
        BESIDE_KAFKA,
        "tests/differential/test_coordinators.py",
    ),
    "ottla.broker.groups.classic.join_parameters": (
        THROUGH_ANOTHER,
        "tests/unit/broker/groups/classic/test_membership.py",
    ),
    "ottla.broker.groups.consumer.admin": (
        THROUGH_ANOTHER,
        "tests/unit/broker/groups/consumer/test_consumer_groups.py",
    ),
    "ottla.broker.groups.consumer.classic_members": (
        THROUGH_ANOTHER,
        "tests/unit/broker/groups/consumer/test_migration.py",
    ),
    **dict.fromkeys(
        (
            "ottla.broker.groups.consumer.membership",
            "ottla.broker.groups.consumer.reconciliation",
            "ottla.broker.groups.consumer.sessions",
        ),
        (THROUGH_ANOTHER, "tests/unit/broker/groups/consumer/test_consumer_groups.py"),
    ),
    **dict.fromkeys(
        (
            "ottla.broker.groups.log.partitions",
            "ottla.broker.groups.log.replay",
        ),
        (THROUGH_ANOTHER, "tests/unit/broker/groups/log/test_loading.py"),
    ),
    "ottla.broker.handlers.admin.topics": (BESIDE_KAFKA, "tests/differential/test_topics.py"),
    **dict.fromkeys(
        (
            "ottla.broker.handlers.cluster.allocate_producer_ids",
            "ottla.broker.handlers.cluster.alter_partition",
            "ottla.broker.handlers.cluster.controlled_shutdown",
            "ottla.broker.handlers.cluster.update_features",
            "ottla.broker.handlers.metadata.describe_cluster",
        ),
        (BESIDE_KAFKA, "tests/differential/test_cluster_admin.py"),
    ),
    "ottla.broker.handlers.cluster.envelope": (BESIDE_KAFKA, "tests/differential/test_sasl.py"),
    **dict.fromkeys(
        (
            "ottla.broker.observability.console.audit",
            "ottla.broker.observability.console.cluster_offsets",
            "ottla.broker.observability.console.cluster_views",
            "ottla.broker.observability.console.event_views",
            "ottla.broker.observability.console.group_actions",
            "ottla.broker.observability.console.group_views",
            "ottla.broker.observability.console.groups_of_cluster",
            "ottla.broker.observability.console.security_views",
            "ottla.broker.observability.console.topic_actions",
        ),
        (WHOLE_BROKER, "tests/integration/test_console_cluster.py"),
    ),
    "ottla.broker.observability.monitoring": (WHOLE_BROKER, "tests/integration/test_logs.py"),
    "ottla.broker.replication.delayed_delete_records": (
        THROUGH_ANOTHER,
        "tests/unit/broker/handlers/records/test_delete_records.py",
    ),
    "ottla.broker.requests.error_rows": (
        THROUGH_ANOTHER,
        "tests/unit/broker/requests/test_error_response.py",
    ),
    **dict.fromkeys(
        (
            "ottla.broker.server.control_assembly",
            "ottla.broker.server.network_assembly",
            "ottla.broker.server.parts",
            "ottla.broker.server.replica_assembly",
        ),
        (WHOLE_BROKER, "tests/integration/test_embedded.py"),
    ),
    "ottla.broker.server.share_assembly": (WHOLE_BROKER, "tests/compat/test_share_consumer.py"),
    "ottla.broker.server.http_assembly": (WHOLE_BROKER, "tests/integration/test_console.py"),
    "ottla.broker.server.security_assembly": (
        WHOLE_BROKER,
        "tests/integration/test_sasl_cluster.py",
    ),
    "ottla.broker.server.scheduler": (WHOLE_BROKER, "tests/integration/test_background.py"),
    "ottla.broker.testing.faults": (
        "is tested by its public name ottla.testing",
        "tests/integration/test_faults.py",
    ),
    "ottla.broker.testing.pytest_plugin": (
        "is loaded by pytest",
        "tests/integration/test_pytest_plugin.py",
    ),
    "ottla.broker.transactions.partition": (
        THROUGH_ANOTHER,
        "tests/unit/broker/transactions/test_coordinator.py",
    ),
    "ottla.cli.acl_check": (COMMAND_LINE, "tests/integration/test_cli_security.py"),
    "ottla.cli.acl_words": (COMMAND_LINE, "tests/integration/test_cli_security.py"),
    "ottla.cli.offline_users": (COMMAND_LINE, "tests/integration/test_cli_security.py"),
    "ottla.cli.tokens": (COMMAND_LINE, "tests/integration/test_cli_security.py"),
    "ottla.cli.users": (COMMAND_LINE, "tests/integration/test_cli_security.py"),
    "ottla.cli.bench": (COMMAND_LINE, "tests/integration/test_cli_records.py"),
    "ottla.cli.cluster": (COMMAND_LINE, "tests/integration/test_cli_topics.py"),
    "ottla.cli.features": (COMMAND_LINE, "tests/integration/test_cli_topics.py"),
    "ottla.cli.group_events": (COMMAND_LINE, "tests/integration/test_cli_groups.py"),
    "ottla.cli.group_deletion": (COMMAND_LINE, "tests/integration/test_cli_groups.py"),
    "ottla.cli.offset_reset": (COMMAND_LINE, "tests/integration/test_cli_groups.py"),
    "ottla.cli.share_groups": (COMMAND_LINE, "tests/integration/test_cli_share_groups.py"),
    "ottla.cli.share_reset": (COMMAND_LINE, "tests/integration/test_cli_share_groups.py"),
    "ottla.cli.healthcheck_command": (COMMAND_LINE, "tests/integration/test_cli_doctor.py"),
    "ottla.cli.log": (COMMAND_LINE, "tests/unit/cli/test_log_tools.py"),
    "ottla.cli.log_dirs": (COMMAND_LINE, "tests/integration/test_cli_topics.py"),
    "ottla.cli.quotas": (COMMAND_LINE, "tests/integration/test_cli_topics.py"),
    "ottla.cli.start": (COMMAND_LINE, "tests/integration/test_cli_start.py"),
    "ottla.controller.tree.zookeeper_watches": (
        THROUGH_ANOTHER,
        "tests/unit/controller/tree/test_zookeeper_store.py",
    ),
    "ottla.protocol.encode_run": (THROUGH_ANOTHER, "tests/unit/protocol/test_encode_compiler.py"),
    "ottla.protocol.sticky_assignment": (
        THROUGH_ANOTHER,
        "tests/unit/protocol/test_assignors.py",
    ),
    "ottla.protocol.sticky_balancing": (
        THROUGH_ANOTHER,
        "tests/unit/protocol/test_assignors.py",
    ),
    "pyspark_ottla.cluster.calls": (
        THROUGH_ANOTHER,
        "tests/unit/pyspark_ottla/cluster/test_cluster.py",
    ),
    "pyspark_ottla.write.stream_writer_factory": (WHOLE_QUERY, "tests/spark/test_sink.py"),
    "pyspark_ottla.cluster.offset_lookup": (
        THROUGH_ANOTHER,
        "tests/unit/pyspark_ottla/cluster/test_cluster.py",
    ),
    "pyspark_ottla.cluster.topic_metadata": (
        THROUGH_ANOTHER,
        "tests/unit/pyspark_ottla/cluster/test_cluster.py",
    ),
}


def named_by_tests() -> set[str]:
    """The modules that a test names by an import."""
    known = modules()
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if (ROOT / "tests" / "doubles") in path.parents:
            continue
        for _, name in imported_names(path):
            module = name
            while module and module not in known:  # a class or function in it
                module = module.rpartition(".")[0]
            found.add(module)
    return found


def mirror(path: Path) -> Path:
    """Where the test of a module belongs."""
    inside = path.relative_to(ROOT)
    return ROOT / "tests" / "unit" / inside.parent / f"test_{inside.name}"


def without_a_test() -> set[str]:
    named = named_by_tests()
    return {
        name
        for name, path in modules().items()
        if path.name != "__init__.py"
        and not name.startswith(f"{GENERATED}.")
        and name not in named
        and not mirror(path).exists()
    }


def test_every_module_has_a_test_or_a_reason() -> None:
    missing = sorted(without_a_test().difference(EXCEPTIONS))
    assert not missing, f"no test names {missing}: write one, or a line in EXCEPTIONS"


def test_the_exceptions_are_needed() -> None:
    needless = sorted(set(EXCEPTIONS).difference(without_a_test()))
    assert not needless, f"a test names {needless}, or they are gone: take the lines away"


def test_the_tests_that_the_exceptions_name_are_there() -> None:
    gone = {test for _, test in EXCEPTIONS.values() if not (ROOT / test).is_file()}
    assert not gone
