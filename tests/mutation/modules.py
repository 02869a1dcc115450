"""The modules that decide, and the tests that cover each."""

from __future__ import annotations

UNIT = "tests/unit"
STORAGE = (
    f"{UNIT}/storage/log",
    f"{UNIT}/storage/producer",
    f"{UNIT}/storage/recovery",
    f"{UNIT}/storage/directories",
)
RECOVERY = (f"{UNIT}/storage/recovery",)

MODULES: dict[str, tuple[str, ...]] = {
    # Controller
    "controller/state/leader_selection.py": (
        f"{UNIT}/controller/state/test_leader_selection.py",
        f"{UNIT}/controller/state_machines",
    ),
    "controller/state_machines/partitions.py": (
        f"{UNIT}/controller/state_machines",
        f"{UNIT}/controller/changes",
    ),
    "controller/state_machines/replicas.py": (
        f"{UNIT}/controller/state_machines",
        f"{UNIT}/controller/changes",
    ),
    "controller/changes/isr_changes.py": (
        f"{UNIT}/controller/changes",
        f"{UNIT}/controller/state_machines",
    ),
    # Replication
    "broker/replication/isr.py": (f"{UNIT}/broker/replication",),
    "broker/replication/partition.py": (f"{UNIT}/broker/replication",),
    "broker/replication/follower_truncation.py": (f"{UNIT}/broker/replication",),
    # Log
    "storage/log/log.py": STORAGE,
    "storage/log/truncation.py": STORAGE,
    "storage/log/leader_epochs.py": STORAGE,
    "storage/recovery/recovery.py": RECOVERY,
    "storage/recovery/recovery_scan.py": RECOVERY,
    "storage/cleaner/compaction_filter.py": (f"{UNIT}/storage/cleaner",),
    "storage/producer/producer_entry.py": (f"{UNIT}/storage/producer", f"{UNIT}/storage/log"),
    "storage/producer/producer_state.py": STORAGE,
    # Transactions
    "broker/transactions/state.py": (f"{UNIT}/broker/transactions",),
    "broker/transactions/coordinator.py": (f"{UNIT}/broker/transactions",),
    "broker/transactions/markers.py": (f"{UNIT}/broker/transactions",),
    # Groups
    "broker/groups/classic/group.py": (f"{UNIT}/broker/groups",),
    "broker/groups/classic/membership.py": (f"{UNIT}/broker/groups",),
    "broker/groups/classic/rebalance.py": (f"{UNIT}/broker/groups",),
    "broker/groups/commits.py": (f"{UNIT}/broker/groups",),
    "broker/groups/offsets.py": (f"{UNIT}/broker/groups",),
    # Security
    "broker/security/sasl/session.py": (f"{UNIT}/broker/security/sasl",),
    "broker/security/authorization/acl_rules.py": (f"{UNIT}/broker/security/authorization",),
}
