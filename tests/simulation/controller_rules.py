"""What must hold of the tree at every moment, for every writer and every order.

* the controller epoch only grows, by one; a partition state is written only under the newest;
* a leader epoch never falls, not even when a topic is deleted and made again, and a new leader
  always has a new one;
* a leader is in its ISR, the ISR is part of the assignment when it is decided, neither is empty
  nor is one listed twice;
* unless a topic allows it or an administrator requests it, a leader comes out of the ISR before;
* a state that is written twice in one life of a topic never loses its partition epoch.
"""

from __future__ import annotations

from ottla.controller.model import LeaderAndIsr
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.protocol.topics import TopicPartition


class Rules:
    """Checks every write to the tree; collects violations as text."""

    def __init__(self, tree: EmbeddedTree) -> None:
        self.tree = tree
        self.violations: list[str] = []
        self.unclean_allowed = False  # for elections that an administrator requests
        self.unclean_topics: set[str] = set()
        self.highest_epoch: dict[TopicPartition, int] = {}
        self.last_state: dict[TopicPartition, LeaderAndIsr] = {}
        self.controller_epoch = 0
        self.states_written = 0
        original = tree._publish

        def publish(events: list[tuple[str, str]]) -> None:
            self.check(events)
            original(events)

        tree._publish = publish  # type: ignore[method-assign] # the one place all writes pass

    def complain(self, text: str) -> None:
        self.violations.append(text)

    def check(self, events: list[tuple[str, str]]) -> None:
        for kind, path in events:
            if kind == "deleted":
                parts = path.split("/")
                if len(parts) == 7 and parts[6] == "state":
                    self.last_state.pop(TopicPartition(parts[3], int(parts[5])), None)
                continue
            if path == znodes.CONTROLLER_EPOCH:
                self._check_controller_epoch()
        for kind, path in events:
            parts = path.split("/")
            if kind != "deleted" and len(parts) == 7 and parts[6] == "state":
                self._check_state(TopicPartition(parts[3], int(parts[5])), path)

    def _check_controller_epoch(self) -> None:
        epoch = int(self.tree.nodes[znodes.CONTROLLER_EPOCH].data)
        if epoch not in (self.controller_epoch, self.controller_epoch + 1):
            self.complain(f"controller epoch went from {self.controller_epoch} to {epoch}")
        self.controller_epoch = epoch

    def _check_state(self, partition: TopicPartition, path: str) -> None:
        self.states_written += 1
        node = self.tree.nodes[path]
        state = znodes.decode_state(partition, node.data, node.version)
        topic_node = self.tree.nodes[znodes.topic_path(partition.topic)]
        topic = znodes.decode_topic(partition.topic, topic_node.data)
        replicas = topic.assignments[partition.partition].replicas
        before = self.last_state.get(partition)
        self.last_state[partition] = state
        if state.controller_epoch != self.controller_epoch:
            self.complain(
                f"{partition} was written by controller epoch {state.controller_epoch} "
                f"while {self.controller_epoch} is the newest"
            )
        highest = self.highest_epoch.get(partition, -1)
        fresh = before is None
        if state.leader_epoch < highest or (fresh and state.leader_epoch <= highest):
            self.complain(f"leader epoch of {partition} fell from {highest}: {state}")
        self.highest_epoch[partition] = max(highest, state.leader_epoch)
        if not state.isr or len(set(state.isr)) != len(state.isr):
            self.complain(f"{partition} has the ISR {state.isr}")
        if state.leader != -1 and state.leader not in state.isr:
            self.complain(f"leader of {partition} is not in its ISR: {state}")
        if state.leader != -1 and state.leader not in replicas:
            self.complain(f"leader of {partition} is not in its assignment {replicas}: {state}")
        if before is not None:
            self._check_change(partition, before, state)

    def _check_change(
        self, partition: TopicPartition, before: LeaderAndIsr, state: LeaderAndIsr
    ) -> None:
        if before.leader != state.leader and state.leader_epoch <= before.leader_epoch:
            self.complain(f"{partition} got another leader without an epoch: {before} -> {state}")
        clean = state.leader in (-1, before.leader) or state.leader in before.isr
        if not clean and not self.unclean_allowed and partition.topic not in self.unclean_topics:
            self.complain(f"unclean election of {partition}: {before} -> {state}")
        if (
            state.leader_epoch != before.leader_epoch
            and clean
            and not set(state.isr) <= set(before.isr)
        ):
            self.complain(f"an election let {partition} gain ISR: {before} -> {state}")
