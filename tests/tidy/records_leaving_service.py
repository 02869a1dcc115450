"""Every place that deletes, renames, truncates or skips what is on disk or in a store.

`REMOVALS` are those where a broker does it to records by itself. For each: the two independent
facts that have to agree, and what happens when they do not. `OTHERS` have no such decision: the
constant says why. `test_records_leave_service.py` compares both with the source, so that a new
place needs a row, and docs/operations.md has the table in the words of operators.
"""

from __future__ import annotations

from typing import NamedTuple


class Removal(NamedTuple):
    """One function, `module:function`, with all the removing calls in it."""

    site: str
    calls: str
    what: str
    fact_one: str
    fact_two: str
    otherwise: str
    #: `file::test` or a file.
    test: str
    #: Where one of the facts is weak: what a case of that would be.
    doubt: str = ""


#: Does what its caller has decided.
PRIMITIVE = "primitive"
#: A client or an operator has requested it.
REQUESTED = "requested"
#: `cleanup.policy` and the limits of the topic.
SETTINGS = "settings of the topic"
#: Holds no record and is rebuilt from the records.
DERIVED = "derived from records"
#: Was never, or is no longer, a part of a log: a part of a file, a copy that failed.
UNUSED = "not in service"
#: State of a coordinator, which has it in later records.
INTERNAL = "internal topic"
#: Another thing of the same name.
NOT_ON_DISK = "not on disk"

REMOVALS = (
    Removal(
        "storage/directories/directory_loader.py:_load",
        "deletions.add fs.remove",
        "deletes directories `-delete` that a stop or a crash has left",
        "the name: the broker renamed the log when it was deleted",
        "none; the bytes of `_take`, `_stop` or `retire` had their own",
        "they are deleted at the start",
        (
            "tests/unit/storage/directories/test_log_manager.py"
            "::test_what_was_being_deleted_goes_after_a_restart"
        ),
    ),
    Removal(
        "storage/directories/log_manager.py:LogManager._take",
        "retire",
        "deletes or sets aside the second log of a partition that is in two log directories",
        "leader epochs and log end offset of both",
        "the topic ids of both",
        "set aside as second-copy; deleted only if both end alike",
        "tests/unit/storage/directories/test_replaced_logs.py::test_the_longer_log_is_kept",
        "ends that are equal do not prove equal records",
    ),
    Removal(
        "storage/directories/log_manager.py:LogManager._take_future",
        "retire",
        "deletes a future log beside another one, or in the directory of the current log",
        "the current log of the partition was loaded",
        "none",
        "it is deleted",
        (
            "tests/unit/storage/directories/test_log_manager.py"
            "::test_copies_of_interrupted_moves_are_deleted"
        ),
        "that the records of the future log are in the current one is not compared",
    ),
    Removal(
        "storage/directories/log_manager.py:LogManager.replace_current_with_future",
        "delete_records_before retire",
        "deletes the log that was moved to another log directory",
        "the end offsets of both logs are equal",
        "the future log was copied from this log by this process, truncations included",
        "ValueError: the current log stays",
        "tests/unit/storage/directories/test_log_manager.py::test_a_log_moves_to_another_directory",
    ),
    Removal(
        "storage/directories/replaced_logs.py:choose_current",
        "delete_records_before",
        "raises the log start of the log that is kept to that of the second one",
        "the log start of the second log",
        "the high watermark of the log that is kept",
        "the lower of both counts",
        (
            "tests/unit/storage/directories/test_replaced_logs.py"
            "::test_records_that_were_deleted_before_a_move_stay_deleted_after_a_crash"
        ),
        "the log start of the copy alone hides records of the log that is kept",
    ),
    Removal(
        "storage/log/retention.py:LogRetention.delete_old_segments",
        "self._delete self._delete self._delete",
        "deletes segments below the log start, and what the settings of the topic do not keep",
        "the log start of memory, or retention.ms and retention.bytes",
        "the high watermark is above; copied to remote storage, if there is one",
        "the segments stay",
        "tests/unit/storage/log/test_retention.py",
        "a log start of the checkpoint counts like one of DeleteRecords",
    ),
    Removal(
        "storage/recovery/directory_repair.py:clean_directory",
        "fs.remove",
        "deletes indexes without a log file",
        "no .log of that offset",
        "an index holds no record",
        "nothing is lost",
        "tests/unit/storage/recovery/test_directory_repair.py::test_indexes_without_a_log_go",
    ),
    Removal(
        "storage/recovery/directory_repair.py:_remove_temporaries",
        "fs.remove fs.remove",
        "deletes .deleted, .cleaned, .tmp, and .swap files of a compaction that did not end",
        "the suffix: they were removed from the log, or never in it",
        "the .cleaned file of the same compaction, for a .swap file",
        "the file is deleted by its name alone",
        (
            "tests/unit/storage/recovery/test_directory_repair.py"
            "::test_a_swap_whose_rest_is_not_complete_is_undone"
        ),
        "a .swap file whose segments are gone would be the only copy",
    ),
    Removal(
        "storage/recovery/directory_repair.py:_finish_swap",
        "fs.remove fs.replace",
        "deletes the segments that a complete compaction replaces",
        "the .swap file and the offsets of its batches",
        "none",
        "segments in these offsets are deleted",
        "tests/unit/storage/recovery/test_directory_repair.py::test_a_complete_swap_is_finished",
        "the .swap file is not verified, nor whether the log is compacted",
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader.load",
        "delete_snapshots self._delete truncate_from_end truncate_from_start",
        (
            "deletes all segments of a log that ends below its log start; begins the log at the log"
            " start of the checkpoint"
        ),
        "the log start of log-start-offset-checkpoint",
        "the log end that recovery found",
        "all segments are deleted",
        (
            "tests/unit/storage/recovery/test_recovery.py"
            "::test_a_log_that_ends_below_its_start_restarts"
        ),
        "the checkpoint alone decides",
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader._repair_overlaps",
        "self._delete truncate_to",
        "deletes empty segments inside others, and the end of a segment that the last one overlaps",
        "the base offset of the later segment",
        "the batches of the earlier segment",
        "the end of the earlier segment is truncated",
        (
            "tests/unit/storage/recovery/test_open_log.py"
            "::test_after_a_clean_stop_the_last_segment_hides_what_it_overlaps"
        ),
        "which of the two is right is not known",
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader._recover",
        "self._delete self._delete truncate",
        (
            "deletes segments behind a gap or a damaged batch, and truncates the damaged one, above"
            " the recovery point"
        ),
        "the recovery point of the checkpoint: it was not flushed",
        "checksums and offsets of the batches",
        "segments behind it are deleted",
        (
            "tests/unit/storage/recovery/test_open_log.py"
            "::test_a_gap_is_a_loss_unless_the_log_was_compacted"
        ),
        "a checkpoint that is lost or old makes all of a log look like not flushed",
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader._delete_replaced",
        "self._delete",
        "deletes segments that compaction merged into the one before",
        "the offsets of the segment before",
        "the log is compacted, by its settings or the checkpoint of the cleaner",
        "the segments stay",
        (
            "tests/unit/storage/recovery/test_open_log.py"
            "::test_segments_that_were_merged_into_another_are_deleted"
        ),
    ),
    Removal(
        "broker/remote/partition_tasks.py:PartitionTasks._complete_epochs",
        "delete_records_before",
        "raises the log start to the first offset of which a leader epoch is known",
        "the leader epochs in the metadata of remote segments",
        "the local log start and the high watermark",
        "the log start stays",
        (
            "tests/unit/broker/remote/test_partition_tasks.py"
            "::test_a_log_start_inside_a_remote_segment_that_was_lost_comes_back"
        ),
    ),
    Removal(
        "broker/remote/partition_tasks.py:PartitionTasks._advance_log_start",
        "delete_records_before",
        "raises the log start to the first record in remote storage or on the local disk",
        "the metadata of remote segments",
        "the first local segment and the leader epochs",
        "the lower of both counts",
        (
            "tests/unit/broker/remote/test_partition_tasks.py"
            "::test_a_new_leader_starts_where_remote_storage_does"
        ),
    ),
    Removal(
        "broker/remote/remote_log_manager.py:RemoteLogManager._delete",
        "delete_partition",
        "deletes all remote segments of a deleted topic",
        "StopReplica of a deletion",
        "the topic id of the segments",
        "nothing is deleted",
        "tests/unit/broker/remote/test_segment_expiration.py::test_a_deleted_topic_leaves_nothing",
        "objects that are not found count as deleted",
    ),
    Removal(
        "broker/remote/segment_expiration.py:SegmentExpiration.run",
        "delete_records_before self._delete",
        "deletes remote segments that retention does not keep, and those of failed copies",
        "the settings of the topic, or the log start",
        "the metadata of the segment is of the history of this log",
        "it is retried, or not counted",
        (
            "tests/unit/broker/remote/test_segment_expiration.py"
            "::test_records_of_another_history_are_not_counted"
        ),
        "objects that are not found count as deleted",
    ),
    Removal(
        "broker/replication/fetcher.py:Fetcher._truncate_to_high_watermark",
        "truncate_to",
        "truncates a follower with records from before leader epochs to its high watermark",
        "the high watermark of this replica",
        "the leader has the records below it",
        "what is above was not committed",
        (
            "tests/unit/broker/replication/test_fetcher.py"
            "::test_a_log_from_before_epochs_is_cut_to_its_high_watermark"
        ),
        "a lost checkpoint makes the high watermark 0",
    ),
    Removal(
        "broker/replication/fetcher.py:Fetcher._append",
        "delete_records_before truncate_fully_and_start_at",
        "follows the log start of the leader; starts an empty log at the first batch of a leader",
        "the leader's log start in the response to Fetch",
        "the high watermark of this replica is above it",
        "the log start stays",
        "tests/unit/broker/replication/test_fetcher.py::test_the_leaders_log_start_is_followed",
    ),
    Removal(
        "broker/replication/fetcher.py:Fetcher._handle_out_of_range",
        "delete_records_before truncate_fully_and_start_at truncate_to",
        "truncates to the end of the leader's log, or starts again at its start",
        "OFFSET_OUT_OF_RANGE in the response to Fetch",
        "a second request for the earliest and latest offset, with the leader epoch",
        "the leader decides, as in Kafka",
        (
            "tests/unit/broker/replication/test_fetcher.py"
            "::test_a_follower_that_was_away_too_long_restarts"
        ),
        "committed records of a follower end with a leader that lost them",
    ),
    Removal(
        "broker/replication/follower_truncation.py:FollowerTruncation.truncate_on_diverging_epoch",
        "truncate_to",
        "truncates a follower where its history diverges from the leader's",
        "the end of the epoch on the leader",
        "the leader epochs of this log",
        "truncation below the high watermark is logged",
        (
            "tests/unit/broker/replication/test_follower_truncation.py"
            "::test_a_truncation_below_the_high_watermark_is_logged"
        ),
        "committed records of a follower end with a leader that lost them",
    ),
    Removal(
        "broker/replication/leader_and_isr.py:LeaderAndIsrApplier._stop",
        "delete_async",
        "deletes a replica by StopReplica of the controller",
        "StopReplica with delete, and its leader epoch or that of a deletion",
        "the controller epoch, and /admin/delete_topics if the metadata have the topic",
        "FENCED_LEADER_EPOCH, the replica stays",
        (
            "tests/unit/broker/replication/test_stray_logs.py"
            "::test_a_replica_of_a_topic_that_is_not_deleted_is_kept"
        ),
        "the request has no topic id in older versions",
    ),
    Removal(
        "broker/replication/log_dir_mover.py:LogDirMover._truncate_copy",
        "truncate_to",
        "truncates a future log to where its current log was truncated",
        "the current log was truncated",
        "the future log is a copy of it",
        "the copy is made again",
        "tests/unit/broker/replication/test_log_dir_mover.py",
    ),
    Removal(
        "broker/replication/log_dir_mover.py:LogDirMover._truncate_in_steps",
        "truncate_to",
        "the same, in steps",
        "the current log was truncated",
        "the future log is a copy of it",
        "the copy is made again",
        "tests/unit/broker/replication/test_log_dir_mover.py",
    ),
    Removal(
        "broker/replication/stray_logs.py:_rename",
        "delete_async",
        "sets aside logs of partitions that are not assigned to this broker",
        "the topic znode: gone, other topic id, or other replicas",
        "the leader epoch of the replica has not changed; twice, for those without StopReplica",
        "it is set aside, never deleted",
        "tests/unit/broker/replication/test_stray_logs.py::test_strays_are_renamed_and_kept",
        "one znode that an old tool rewrote sets every replica aside",
    ),
    Removal(
        "broker/replication/tier_state_machine.py:TierStateMachine._start",
        "truncate_fully_and_start_at",
        "empties the log of a follower whose next offsets are in remote storage only",
        "OFFSET_MOVED_TO_TIERED_STORAGE of the leader",
        "the metadata of the remote segment before the leader's local log",
        "an error, the log stays",
        "tests/unit/broker/replication/test_tier_state_machine.py",
    ),
)

# site: (calls, why)
OTHERS = {
    "storage/cleaner/compaction.py:Compaction.commit": ("_remove_files", UNUSED),
    "storage/cleaner/compaction.py:Compaction._rename": ("_remove_files change_suffix", UNUSED),
    "storage/cleaner/compaction.py:Compaction._swap": ("retire_segments", SETTINGS),
    "storage/cleaner/compaction.py:Compaction.discard": ("_remove_files", UNUSED),
    "storage/cleaner/compaction.py:finish_swap": ("change_suffix", SETTINGS),
    "storage/cleaner/compaction.py:_delete_snapshots": ("delete_snapshots", DERIVED),
    "storage/cleaner/compaction.py:_remove_files": ("fs.remove", UNUSED),
    "storage/directories/log_manager.py:LogManager._create": ("remove_tree", UNUSED),
    "storage/directories/log_manager.py:LogManager.delete_async": (
        "abandon_future retire",
        PRIMITIVE,
    ),
    "storage/directories/log_manager.py:LogManager.create_future": (
        "abandon_future remove_tree",
        UNUSED,
    ),
    "storage/directories/log_manager.py:LogManager.abandon_future": ("retire", PRIMITIVE),
    "storage/directories/log_manager.py:LogManager.cleanup": ("delete_old_segments", SETTINGS),
    "storage/directories/replaced_logs.py:rename_to_current": ("fs.replace", REQUESTED),
    "storage/directories/retirements.py:Retirements._finish": (
        "deletions.add fs.replace",
        PRIMITIVE,
    ),
    "storage/files/deletions.py:Deletions.purge": ("fs.remove remove_tree", PRIMITIVE),
    "storage/files/fs.py:RealFileSystem": ("os.replace unlink", PRIMITIVE),
    "storage/files/fs.py:RealFileSystem.remove_tree": ("rmtree", PRIMITIVE),
    "storage/files/fs.py:replace_file": ("fs.replace", PRIMITIVE),
    "storage/files/set_aside.py:set_file_aside": ("fs.replace", PRIMITIVE),
    "storage/index/index_file.py:IndexFile._truncate": ("truncate", DERIVED),
    "storage/index/index_file.py:IndexFile.reset": ("truncate", DERIVED),
    "storage/index/txn_index.py:TransactionIndex._keep": ("truncate", DERIVED),
    "storage/index/txn_index.py:TransactionIndex._remove": ("fs.remove truncate", DERIVED),
    "storage/inspection/set_aside_restore.py:Restorer.finish": ("remove_tree", REQUESTED),
    "storage/inspection/set_aside_restore.py:Restorer.discard": (
        "fs.remove fs.replace remove_tree",
        REQUESTED,
    ),
    "storage/inspection/set_aside_restore.py:Restorer._restore_log": ("fs.replace", REQUESTED),
    "storage/inspection/set_aside_restore.py:Restorer._replace": ("fs.replace", REQUESTED),
    "storage/inspection/set_aside_restore.py:Restorer._remove_note": ("fs.remove", REQUESTED),
    "storage/inspection/set_aside_restore.py:Restorer._restore_file": ("fs.replace", REQUESTED),
    "storage/inspection/set_aside_restore.py:Restorer._remove_segment": ("fs.remove", REQUESTED),
    "storage/inspection/set_aside_restore.py:Restorer._recover_transactions": (
        "fs.remove",
        REQUESTED,
    ),
    "storage/inspection/set_aside_restore.py:Restorer._recover_at_start": ("fs.remove", REQUESTED),
    "storage/log/leader_epochs.py:LeaderEpochs.enable": ("fs.remove", DERIVED),
    "storage/log/local_log.py:LocalLog.create_segment": ("remove_files", UNUSED),
    "storage/log/local_log.py:LocalLog.remove_files": ("fs.remove", PRIMITIVE),
    "storage/log/local_log.py:LocalLog.retire_segments": (
        "deletions.add fs.remove retire_snapshot",
        PRIMITIVE,
    ),
    "storage/log/local_log.py:LocalLog._retire_files": (
        "change_suffix deletions.add fs.remove",
        PRIMITIVE,
    ),
    "storage/log/log.py:Log.truncate_to": ("truncate_to", PRIMITIVE),
    "storage/log/log.py:Log.truncate_fully_and_start_at": (
        "truncate_fully_and_start_at",
        PRIMITIVE,
    ),
    "storage/log/log.py:Log.begin_copy": ("truncate_fully_and_start_at", UNUSED),
    "storage/log/log.py:Log.delete_records_before": ("delete_records_before", PRIMITIVE),
    "storage/log/log.py:Log.delete_old_segments": ("delete_old_segments", PRIMITIVE),
    "storage/log/retention.py:LogRetention._delete_some": (
        "advance_local_log_start delete_records_before retire_segments",
        PRIMITIVE,
    ),
    "storage/log/segment.py:Segment.undo_append": ("truncate_to truncate_to", DERIVED),
    "storage/log/segment.py:Segment.truncation.run": ("truncate", PRIMITIVE),
    "storage/log/segment.py:Segment.change_suffix": ("fs.replace", PRIMITIVE),
    "storage/log/segment_file.py:SegmentFile.remove_partial_write": ("truncate", UNUSED),
    "storage/log/segment_file.py:SegmentFile.truncate": ("truncate", PRIMITIVE),
    "storage/log/segment_file.py:SegmentFile.preallocate": ("truncate", UNUSED),
    "storage/log/segment_file.py:SegmentFile.trim": ("truncate", UNUSED),
    "storage/log/truncation.py:LogTruncator._truncate_to": (
        "retire_segments truncate_from_end truncate_to",
        PRIMITIVE,
    ),
    "storage/log/truncation.py:LogTruncator._ready": ("truncate_from_end", PRIMITIVE),
    "storage/log/truncation.py:LogTruncator._truncate_below_local": (
        "truncate_fully_and_start_at",
        PRIMITIVE,
    ),
    "storage/log/truncation.py:LogTruncator.truncate_fully_and_start_at": (
        "restart_at retire_segments",
        PRIMITIVE,
    ),
    "storage/log/truncation.py:LogTruncator._first_segment": (
        "delete_snapshot remove_files",
        PRIMITIVE,
    ),
    "storage/log/truncation.py:LogTruncator.delete_records_before": (
        "advance_log_start truncate_from_start",
        PRIMITIVE,
    ),
    "storage/producer/producer_state.py:ProducerState._delete_snapshots_outside": (
        "delete_snapshots delete_snapshots",
        DERIVED,
    ),
    "storage/producer/producer_state.py:ProducerState._newest": ("delete_snapshot", DERIVED),
    "storage/producer/producer_state.py:ProducerState.reset": ("delete_snapshot", DERIVED),
    "storage/producer/producer_state.py:ProducerState.keep_snapshots_of": (
        "delete_snapshot",
        DERIVED,
    ),
    "storage/producer/producer_state.py:ProducerState.delete_snapshots": (
        "delete_snapshot",
        DERIVED,
    ),
    "storage/producer/producer_state.py:ProducerState.delete_snapshot": ("fs.remove", DERIVED),
    "storage/producer/producer_state.py:ProducerState.retire_snapshot": ("fs.replace", DERIVED),
    "storage/recovery/recovery.py:_Loader._topic_id": ("fs.remove", DERIVED),
    "storage/recovery/recovery.py:_Loader._load_epochs": ("fs.remove fs.remove", DERIVED),
    "storage/recovery/recovery.py:_Loader._prepare": ("truncate_to", DERIVED),
    "storage/recovery/recovery.py:_Loader._delete": ("fs.remove", PRIMITIVE),
    "storage/remote/cloud_object_store.py:CloudObjectStore.delete": ("obstore.delete", PRIMITIVE),
    "storage/remote/inventory.py:delete_orphans": ("store.delete", REQUESTED),
    "storage/remote/local_object_store.py:LocalObjectStore.put": ("fs.replace", UNUSED),
    "storage/remote/local_object_store.py:LocalObjectStore._remove": ("fs.remove", UNUSED),
    "storage/remote/local_object_store.py:LocalObjectStore.delete": ("fs.remove", PRIMITIVE),
    "storage/remote/object_remote_storage.py:ObjectRemoteStorage.copy_log_segment": (
        "store.delete",
        UNUSED,
    ),
    "storage/remote/object_remote_storage.py:ObjectRemoteStorage.delete_log_segment": (
        "store.delete",
        PRIMITIVE,
    ),
    "broker/handlers/records/delete_records.py:DeleteRecordsHandler._delete": (
        "delete_records_before",
        REQUESTED,
    ),
    "broker/remote/segment_copier.py:RemoteSegments.delete": ("delete_log_segment", PRIMITIVE),
    "broker/remote/segment_copier.py:SegmentCopier._undo": ("remote.delete", UNUSED),
    "broker/remote/segment_expiration.py:SegmentExpiration._delete": ("remote.delete", PRIMITIVE),
    "broker/remote/segment_expiration.py:delete_partition": ("remote.delete", PRIMITIVE),
    "broker/replication/follower_truncation.py:FollowerTruncation._truncate_in_parts": (
        "truncate_to",
        PRIMITIVE,
    ),
    "broker/replication/follower_truncation.py:FollowerTruncation.truncate_fully_and_start_at": (
        "truncate_fully_and_start_at",
        PRIMITIVE,
    ),
    "broker/replication/leader_and_isr.py:_stops": ("delete_partition", NOT_ON_DISK),
    "broker/replication/log_dir_mover.py:LogDirMover.move": ("abandon_future", REQUESTED),
    "broker/replication/log_dir_mover.py:LogDirMover._append": (
        "truncate_fully_and_start_at",
        UNUSED,
    ),
    "broker/server/share_assembly.py:_delete_before": ("delete_records_before", INTERNAL),
    "broker/server/start_checks.py:_lacks_space": ("unlink", UNUSED),
    "controller/tree/zookeeper_store.py:ZooKeeperStore.delete": ("delete_async", NOT_ON_DISK),
}
