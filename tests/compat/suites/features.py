"""The features that a suite may report, in the order of the document, with their group."""

FEATURES: dict[str, dict[str, str]] = {
    "Connect": {
        "connect": "versions agreed on, brokers and cluster id read",
        "list-topics": "topics listed and described",
    },
    "Produce": {
        "create-topic": "a topic created by an admin request",
        "auto-create": "a topic created by the first record",
        "acks-0": "acks=0",
        "acks-1": "acks=1",
        "acks-all": "acks=all",
        "codec-gzip": "gzip",
        "codec-snappy": "snappy",
        "codec-lz4": "lz4",
        "codec-zstd": "zstd",
        "headers": "headers: repeated names, null and binary values",
        "null-values": "null keys and null values",
        "large-record": "a record of 768 KiB",
        "idempotent": "idempotent producer",
    },
    "Consume": {
        "consume": "read from the beginning, every record once, in order",
        "list-offsets": "first and last offset of a partition",
        "seek-by-time": "offset of a timestamp",
    },
    "Groups": {
        "group": "a member reads everything once",
        "group-commit": "the next member starts where the last one committed",
        "group-rebalance": "two members share, one takes over",
        "group-cooperative": "cooperative assignment",
        "static-member": "static membership (KIP-345)",
        "group-consumer-protocol": "the new group protocol (KIP-848)",
    },
    "Transactions": {
        "txn-commit": "committed records are read",
        "txn-abort": "aborted records are not read by read_committed",
        "txn-offsets": "offsets committed in a transaction",
        "txn-fencing": "an older producer of the same id is fenced",
        "txn-admin": "transactions and producers described",
    },
    "Admin": {
        "describe-cluster": "DescribeCluster or Metadata: id, controller, brokers",
        "describe-configs": "settings of topics and brokers",
        "alter-configs": "settings changed",
        "create-partitions": "partitions added",
        "delete-records": "records deleted up to an offset",
        "list-groups": "groups listed",
        "describe-group": "a group and its members",
        "group-offsets": "offsets of a group read",
        "reset-offsets": "offsets of a group set",
        "delete-offsets": "offsets of a group deleted",
        "delete-group": "a group deleted",
        "log-dirs": "log directories and sizes",
        "elect-leaders": "preferred leader election",
        "reassign": "reassignments altered and listed",
        "quotas": "client quotas altered and described",
        "delete-topic": "a topic deleted",
    },
}

NAMES: tuple[str, ...] = tuple(name for group in FEATURES.values() for name in group)
