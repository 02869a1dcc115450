"""The topics of the cluster that match a pattern, as topics are created and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from ottla.broker.cluster.metadata_cache import MetadataSnapshot, TopicMetadata
from ottla.broker.groups.consumer import cluster_topics
from ottla.broker.groups.consumer.cluster_topics import ClusterTopics
from ottla.broker.groups.consumer.consumer_group import ConsumerGroup
from ottla.broker.groups.consumer.draft import GroupDraft
from ottla.broker.groups.consumer.member import ConsumerMember
from ottla.protocol.steps import Steps, run_at_once


def snapshot(*names: str) -> MetadataSnapshot:
    topics = {name: TopicMetadata(name, name.encode().rjust(16), {}) for name in names}
    return MetadataSnapshot({}, topics, {}, (1, 1))


class Scene:
    """A catalog whose snapshot is replaced by hand; `matched` counts names that were matched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.snapshot = snapshot(*names)
        self.catalog = ClusterTopics(lambda: self.snapshot)
        self.matched = 0
        find_matching = cluster_topics.find_matching

        def counted(pattern: str, names: Iterable[str]) -> Steps[frozenset[str]]:
            return find_matching(pattern, self._counted(names))

        monkeypatch.setattr(cluster_topics, "find_matching", counted)

    def _counted(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            self.matched += 1
            yield name


def test_only_new_topics_are_matched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(1000)]
    scene = Scene(monkeypatch, *names)
    assert run_at_once(scene.catalog.matching("t1.*")) == {name for name in names if name[1] == "1"}
    assert scene.matched == 1000
    scene.snapshot = snapshot(*names[:-1], "t1x", "other")
    version = scene.catalog.version
    assert "t1x" in run_at_once(scene.catalog.matching("t1.*"))
    assert "other" not in run_at_once(scene.catalog.matching("t1.*"))
    assert scene.matched == 1002
    scene.snapshot = snapshot(*(name for name in names if name != "t17"))
    assert scene.catalog.version is not version
    assert run_at_once(scene.catalog.matching("t1.*")) == {n for n in names if n[1] == "1"} - {
        "t17"
    }
    assert scene.matched <= 1003


def test_the_names_that_are_matched_in_one_turn_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_topics, "MAX_MATCHES_PER_CHANGE", 10)
    scene = Scene(monkeypatch, "a")
    for pattern in ("a.*", "b.*", "c.*"):
        run_at_once(scene.catalog.matching(pattern))
    assert scene.matched == 3
    scene.snapshot = snapshot("a", "a1", "b1", "c1")
    assert run_at_once(scene.catalog.matching("b.*")) == {"b1"}
    assert scene.matched == 3 + 9
    scene.snapshot = snapshot("a", "a1", "b1", "c1", "b2", "b3", "b4", "b5")
    assert run_at_once(scene.catalog.matching("b.*")) == {"b1", "b2", "b3", "b4", "b5"}
    assert scene.matched == 3 + 9 + 8, "each pattern when it is needed"


def test_new_patterns_of_a_group_are_matched_name_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the pauses topics are created and deleted."""
    names = [f"t{number}" for number in range(1000)]
    scene = Scene(monkeypatch, *names)
    group = ConsumerGroup("g")
    for pattern in ("t1.*", "t2.*"):
        group.members[pattern] = ConsumerMember(pattern, topic_regex=pattern)
    most = before = 0
    for _ in GroupDraft(group, scene.catalog).refresh_topics():
        most, before = max(most, scene.matched - before), scene.matched
        scene.snapshot = snapshot(*names[:-1], "t1x", "other")
        assert scene.catalog.version
    assert 0 < most <= 2
    matched = scene.matched
    assert run_at_once(scene.catalog.matching("t1.*")) == {n for n in names if n[1] == "1"} | {
        "t1x"
    }
    assert run_at_once(scene.catalog.matching("t2.*")) == {n for n in names if n[1] == "2"}
    assert scene.matched == matched


def test_a_cache_that_is_full_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_topics, "MAX_PATTERNS", 2)
    scene = Scene(monkeypatch, "a", "b")
    for pattern in ("a", "b", "[ab]", "a"):
        run_at_once(scene.catalog.matching(pattern))
    assert scene.matched == 8
