"""The commands of `ottla` and their modules, which are imported when a command runs."""

from __future__ import annotations

#: Commands without Typer, and the module whose `main` gets the arguments and returns the exit code.
DIRECT = {
    "start": "ottla.broker.__main__",
    "healthcheck": "ottla.cli.healthcheck",
    "zookeeper": "ottla.cli.zookeeper",
}

#: Name: (module, line of `ottla --help`). The module has an `app`, or is one of `DIRECT`.
FAMILIES: dict[str, tuple[str, str]] = {
    "start": (DIRECT["start"], "Start a broker."),
    "healthcheck": (
        DIRECT["healthcheck"],
        "Check whether a broker serves clients. Fast, for containers.",
    ),
    "cluster": (
        "ottla.cli.cluster",
        "Show brokers and controller; start a local cluster.",
    ),
    "workers": ("ottla.cli.workers", "List the workers of machines, and spread partitions."),
    "zookeeper": (
        DIRECT["zookeeper"],
        "Start a ZooKeeper server without Java, for development.",
    ),
    "topics": ("ottla.cli.topics", "List, create, describe, alter and delete topics."),
    "configs": ("ottla.cli.configs", "Describe and alter settings of topics and brokers."),
    "produce": ("ottla.cli.produce", "Write lines of standard input or a file to a topic."),
    "consume": ("ottla.cli.consume", "Read records of a topic."),
    "groups": ("ottla.cli.groups", "List, describe, reset and delete consumer groups."),
    "share-groups": (
        "ottla.cli.share_groups",
        "List, describe, reset and delete share groups (KIP-932).",
    ),
    "records": ("ottla.cli.records", "Delete records up to an offset or a time."),
    "partitions": (
        "ottla.cli.partitions",
        "Elect leaders, reassign replicas, list under-replicated.",
    ),
    "transactions": ("ottla.cli.transactions", "List, describe and abort transactions."),
    "acls": ("ottla.cli.acls", "List, add, remove and check access control lists."),
    "users": ("ottla.cli.users", "List, add and remove users that log in by SCRAM."),
    "tokens": ("ottla.cli.tokens", "List, create, renew and expire delegation tokens."),
    "quotas": ("ottla.cli.quotas", "Describe and alter client quotas."),
    "features": ("ottla.cli.features", "List API versions and features of the brokers."),
    "log": ("ottla.cli.log", "Dump, verify and restore log files on disk, without a broker."),
    "log-dirs": ("ottla.cli.log_dirs", "Describe the log directories of the brokers."),
    "tiered": ("ottla.cli.tiered", "Show, verify and clean up segments in remote storage."),
    "doctor": ("ottla.cli.doctor", "Check the state of the brokers, and that clients reach them."),
    "status": (
        "ottla.cli.status",
        "Show brokers, partitions and problems on one screen.",
    ),
    "migrate": ("ottla.cli.migrate", "Check whether an Ottla broker can join a Kafka cluster."),
    "spark": (
        "ottla.cli.spark",
        "Land topics as tables, run Spark jobs, write the connector.",
    ),
    "bench": ("ottla.cli.bench", "Measure produce and consume with a simple client."),
}
