"""`ottla tiered`: the segments in remote storage."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection
from typing import Annotated
from uuid import UUID

import typer

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.properties_file import read_properties
from ottla.cli.app import family
from ottla.cli.completion import complete_topics
from ottla.cli.offsets import parse_duration
from ottla.cli.output import Cell, Failure, bytes_text, note, print_json, print_rows, say, usage
from ottla.cli.remote_segments import RemoteSegments, read_remote_segments
from ottla.cli.session import Session, connected
from ottla.protocol.uuids import uuid_from_string, uuid_to_string
from ottla.storage.remote.inventory import delete_orphans, take_inventory, verify_segment
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from ottla.storage.remote.store_settings import RemoteStorageSettingsError

app = family("Show, verify and clean up the segments in remote storage.")

_PREFIX = "rsm.config."
_COPIED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Topics; none: all.", show_default=False, autocompletion=complete_topics),
]
ConfigOption = Annotated[
    str,
    typer.Option(
        "--config", "-c", help="Properties file of a broker with the settings rsm.config.*."
    ),
]


@app.command("status")
@connected
def status(session: Session, topics: TopicsArgument = None) -> None:
    """Print segments, bytes and offsets in remote storage, by partition.

    It reads __remote_log_metadata, not the store.

    \b
    Examples:
      ottla tiered status
      ottla tiered status orders --json
    """
    by_partition: dict[tuple[str, int], list[RemoteLogSegmentMetadata]] = defaultdict(list)
    for metadata in read_remote_segments(session).segments(topics or ()):
        partition = metadata.segment_id.topic_id_partition
        by_partition[partition.topic, partition.partition].append(metadata)
    rows = [_status_row(*key, segments) for key, segments in by_partition.items()]
    if session.json:
        print_json(rows)
        return
    columns = list(rows[0]) if rows else []
    shown = [{**row, "size": bytes_text(int(str(row["size"])))} for row in rows]
    print_rows(shown, columns, empty="No segments in remote storage.")


def _status_row(
    topic: str, partition: int, segments: list[RemoteLogSegmentMetadata]
) -> dict[str, Cell]:
    copied = [metadata for metadata in segments if metadata.state is _COPIED]
    copying = sum(
        metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED for metadata in segments
    )
    return {
        "topic": topic,
        "partition": partition,
        "segments": len(copied),
        "size": sum(metadata.size_bytes for metadata in copied),
        "start_offset": min((metadata.start_offset for metadata in copied), default=None),
        "end_offset": max((metadata.end_offset for metadata in copied), default=None),
        "copying": copying,
        "deleting": len(segments) - len(copied) - copying,
    }


@app.command("verify")
@connected
def verify(
    session: Session,
    config: ConfigOption,
    topics: TopicsArgument = None,
    content: Annotated[
        bool, typer.Option("--content", help="Read all bytes and compare their checksums.")
    ] = False,
) -> None:
    """Check the objects of each segment that is copied. The exit code is 1 if one is damaged.

    Without --content it compares sizes only.

    \b
    Examples:
      ottla tiered verify --config server.properties
      ottla tiered verify orders --config server.properties --content
    """
    storage = _open(config)
    try:
        segments = _copied(session, topics)
        found = {
            metadata.segment_id: list(verify_segment(storage, metadata, read_content=content))
            for metadata in segments
        }
        # Retention deletes segments while they are verified, which takes hours with --content.
        left = _copied(session, topics) if any(found.values()) else []
        problems: list[dict[str, Cell]] = [
            {"segment": str(metadata.segment_id.id), "problem": problem}
            for metadata in left
            for problem in found.get(metadata.segment_id, ())
        ]
    except RemoteStorageError as error:
        raise Failure(f"the remote storage failed: {error}.") from None
    finally:
        storage.close()
    if session.json:
        print_json({"segments": len(segments), "problems": problems})
    else:
        for each in problems:
            say(str(each["problem"]))
    if problems:
        raise Failure(f"{len(problems)} problems in {len(segments)} segments.")
    if not session.json:
        say(f"{len(segments)} segments are intact.")


def _copied(session: Session, topics: list[str] | None) -> list[RemoteLogSegmentMetadata]:
    return [
        metadata
        for metadata in read_remote_segments(session).segments_in_use(topics or ())
        if metadata.state is _COPIED
    ]


@app.command("adopt")
@connected
def adopt(
    session: Session,
    config: ConfigOption,
    execute: Annotated[
        bool, typer.Option("--execute", help="Adopt the store; without it, look only.")
    ] = False,
) -> None:
    """Make a store the one of the cluster, and print how many segments in use it has.

    Brokers copy to no other store and delete nothing there. They adopt one by themselves if it has
    a segment in use, or if there are none. What is not in the store cannot be read any more.

    \b
    Examples:
      ottla tiered adopt --config server.properties
      ottla tiered adopt --config server.properties --execute
    """
    cluster_id = session.client.metadata(None).cluster_id
    if not cluster_id:
        raise Failure("the broker does not say the id of its cluster.")
    storage = _open(config, cluster_id)
    try:
        segments = _copied(session, None)
        present = sum(storage.has_manifest(metadata) for metadata in segments)
        if execute:
            storage.adopt()
    except RemoteStorageError as error:
        raise Failure(f"the remote storage failed: {error}.") from None
    finally:
        storage.close()
    if session.json:
        print_json({"segments": len(segments), "present": present, "adopted": execute})
        return
    say(f"{present} of {len(segments)} segments in use are in the store.")
    if not execute:
        note("The store is not changed; add --execute.")


@app.command("gc")
@connected
def gc(
    session: Session,
    config: ConfigOption,
    min_age: Annotated[
        str, typer.Option("--min-age", help="Age of an object from which it may be deleted.")
    ] = "24h",
    unknown_topics: Annotated[
        bool,
        typer.Option(
            "--unknown-topics",
            help="Also objects of topics that this cluster never had in remote storage.",
        ),
    ] = False,
    unrecorded: Annotated[
        bool,
        typer.Option(
            "--unrecorded",
            help="Also segments that __remote_log_metadata never had. It may have lost them.",
        ),
    ] = False,
    deleted_topic: Annotated[
        list[str] | None,
        typer.Option(
            "--deleted-topic",
            metavar="ID",
            help="Also objects of a topic that was deleted while its leaders were down.",
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Delete the objects; without it they are listed.")
    ] = False,
) -> None:
    """List or delete objects that belong to no segment, such as those of interrupted copies and
    interrupted deletions of topics.

    Objects of unknown topics may be those of another cluster that uses the same store. Topics with
    segments that the cluster does not list are named, with their ids: they are deleted, or you may
    not describe them.

    \b
    Examples:
      ottla tiered gc --config server.properties
      ottla tiered gc --config server.properties --min-age 7d --execute
      ottla tiered gc -c server.properties --deleted-topic 4wbHw-GRSx6cN0FwSpkG3A
    """
    min_age_ms = parse_duration(min_age)
    storage = _open(config)
    # Before the records are read: a copy that begins meanwhile is in none of them, and its objects
    # are newer than this.
    now_ms = int(time.time() * 1000)
    try:
        known = read_remote_segments(session)
        if not known.is_complete:
            raise Failure(
                "the first records of __remote_log_metadata are deleted, so segments in use could"
                " be taken for orphans. Its retention must have no limit."
            )
        unlisted = _unlisted_topics(session, known)
        deleted = {_unlisted_id(text, unlisted): text for text in deleted_topic or ()}
        live = known.segments_in_use(deleted=deleted.keys())
        inventory = take_inventory(storage, live, now_ms, min_age_ms)
        of_topics = [
            orphan
            for orphan in inventory.orphans
            if unknown_topics or _is_of_known_topic(storage, known, orphan.key)
        ]
        orphans = [
            orphan
            for orphan in of_topics
            if unrecorded or not _is_unrecorded(storage, known, orphan.key, deleted.keys())
        ]
        if execute:
            delete_orphans(storage, orphans)
    except RemoteStorageError as error:
        raise Failure(f"the remote storage failed: {error}.") from None
    finally:
        storage.close()
    skipped = len(inventory.orphans) - len(of_topics)
    lost = len(of_topics) - len(orphans)
    rows: list[dict[str, Cell]] = [{"object": found.key, "size": found.size} for found in orphans]
    if session.json:
        print_json({
            "deleted": execute,
            "orphans": rows,
            "unknown_topics": skipped,
            "unrecorded": lost,
            "young": len(inventory.young),
            "foreign": inventory.foreign,
            "live_objects": inventory.live_objects,
            "live_bytes": inventory.live_bytes,
            "unlisted_topics": {uuid_to_string(key.bytes): name for key, name in unlisted.items()},
        })  # fmt: skip
        return
    print_rows(rows, ["object", "size"], empty="No orphans.")
    if skipped:
        note(f"{skipped} objects of unknown topics; see --unknown-topics.")
    if lost:
        note(
            f"{lost} objects of segments that __remote_log_metadata never had. If its records were "
            "lost, these are the only copies; see --unrecorded."
        )
    for topic_id, name in unlisted.items():
        if topic_id not in deleted:
            note(
                f"{name} has segments and is not listed by the cluster. If it is deleted, add "
                f"--deleted-topic {uuid_to_string(topic_id.bytes)}."
            )
    if orphans and not execute:
        note(f"{len(orphans)} objects can be deleted; add --execute.")


def _unlisted_topics(session: Session, known: RemoteSegments) -> dict[UUID, str]:
    """The names of topics with segments in use that the cluster does not list, by their ids."""
    listed = {UUID(bytes=row.topic_id) for row in session.client.metadata(None).topics}
    found: dict[UUID, str] = {}
    for metadata in known.segments_in_use():
        partition = metadata.segment_id.topic_id_partition
        if partition.topic_id not in listed:
            found[partition.topic_id] = partition.topic
    return found


def _unlisted_id(text: str, unlisted: dict[UUID, str]) -> UUID:
    try:
        topic_id = UUID(bytes=uuid_from_string(text))
    except ValueError as error:
        raise usage(f"--deleted-topic: {error}.") from None
    if topic_id not in unlisted:
        raise Failure(
            f"--deleted-topic: the cluster lists the topic with the id {text}, or it has no"
            " segments in use."
        )
    return topic_id


def _is_unrecorded(
    storage: ObjectRemoteStorage, known: RemoteSegments, key: str, deleted: Collection[UUID]
) -> bool:
    """Whether it is of a segment without a record, of a topic that has some and is not deleted."""
    parsed = storage.keys.parse(key)
    return (
        parsed is not None
        and parsed.topic_id in known.topic_ids
        and parsed.topic_id not in deleted
        and parsed.segment_id not in known.recorded_ids
        and not known.is_being_deleted(parsed.topic_id, parsed.partition)
    )


def _is_of_known_topic(storage: ObjectRemoteStorage, known: RemoteSegments, key: str) -> bool:
    parsed = storage.keys.parse(key)
    return parsed is not None and parsed.topic_id in known.topic_ids


def _open(path: str, cluster_id: str | None = None) -> ObjectRemoteStorage:
    try:
        properties = {item.name: item.value for item in read_properties(path)}
    except ConfigError as error:
        raise usage(f"--config: {error}") from None
    settings = {
        name.removeprefix(_PREFIX): value
        for name, value in properties.items()
        if name.startswith(_PREFIX)
    }
    # A copy is nothing that this command does, so there is no clock for a limit.
    settings.pop("upload.rate.limit.bytes.per.second", None)
    try:
        return open_remote_storage(settings, cluster_id=cluster_id)
    except RemoteStorageSettingsError as error:
        raise usage(f"--config {path}: {error}") from None
