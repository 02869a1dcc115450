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
SOCKETS = "a directory that this process made for the sockets between its processes"
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
        "storage/directories/log_manager.py:LogManager._retire",
        "retire",
        ("deletes or sets aside the second log of a partition, and what is left of a move"),
        ("topic ids, leader epochs and end offsets of both logs"),
        ("equal bytes of the end of both, and a common history"),
        ("set aside as second-copy, topic-recreated or incomplete-move"),
        (
            "tests/unit/storage/directories/test_replaced_logs.py::test_a_future_log_beside_its_current_log_is_deleted_if_its_records_are_there"
        ),
    ),
    Removal(
        "storage/directories/log_manager.py:LogManager.take_back",
        "delete_async",
        ("deletes a current log when a log that was set aside takes its place"),
        ("the current log has no records"),
        ("the topic id of the log that comes back"),
        ("the current log stays, and the other one stays set aside"),
        (
            "tests/unit/broker/replication/test_stray_logs.py::test_the_best_log_with_the_topic_id_is_taken_back"
        ),
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
        "storage/log/truncation.py:LogRetention.delete_old_segments",
        "self._delete self._delete self._delete",
        "deletes segments below the log start, and what the settings of the topic do not keep",
        "the log start of memory, or retention.ms and retention.bytes",
        "the high watermark is above; copied to remote storage, if there is one; by time: the file"
        " is as old, or the headers of all batches agree with the time index",
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
        "storage/recovery/directory_repair.py:_finish_swaps",
        "fs.remove fs.remove fs.replace",
        ("deletes the segments that a complete compaction replaces"),
        ("checksums and offsets of the .swap file"),
        ("the log is compacted"),
        ("the segments are set aside as overlap, or the .swap file as damaged"),
        (
            "tests/unit/storage/recovery/test_directory_repair.py::test_what_a_swap_replaces_without_proof_is_set_aside"
        ),
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader.load",
        "self._delete self._set_aside truncate_from_end truncate_from_start",
        ("empties a log that ends below its log start"),
        ("the log start of log-start-offset-checkpoint"),
        ("the leader epochs begin there"),
        ("the log starts at its first segment; what is below is set aside as below-log-start"),
        (
            "tests/unit/storage/recovery/test_open_log.py::test_a_log_start_that_the_epochs_do_not_confirm_hides_nothing"
        ),
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader._repair_overlaps",
        "self._delete",
        ("deletes empty segments inside others"),
        ("the segment has no bytes"),
        ("the offsets of the segment before"),
        ("it stays"),
        (
            "tests/unit/storage/recovery/test_open_log.py::test_empty_segments_below_the_end_of_the_records_are_deleted"
        ),
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader._set_hidden_aside",
        "truncate_to",
        ("truncates records that a later segment has, too"),
        ("the base offset of the later segment"),
        ("the batches of both"),
        ("they are copied aside first, as overlap"),
        (
            "tests/unit/storage/recovery/test_open_log.py::test_of_segments_that_overlap_no_record_is_lost"
        ),
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader._recover_from",
        "self._set_aside self._set_aside truncate_from_end",
        ("takes segments behind damage, or of another history, out of service"),
        ("checksums and offsets of the batches"),
        ("leader epochs that fall"),
        ("set aside as after-gap; a gap alone stays"),
        (
            "tests/unit/storage/recovery/test_open_log.py::test_what_was_truncated_does_not_come_back_behind_a_gap"
        ),
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader._truncate",
        "self._delete self._set_aside self._set_aside truncate truncate_from_end",
        ("truncates a segment at the first batch that is not valid"),
        ("its checksum or offset"),
        ("no valid batch behind it, above the recovery point: a write that a crash interrupted"),
        ("the end is copied aside as damaged, later segments are set aside as after-gap"),
        (
            "tests/unit/storage/recovery/test_open_log.py::test_what_is_behind_a_damaged_batch_is_set_aside"
        ),
    ),
    Removal(
        "storage/recovery/recovery.py:_Loader._remove_replaced",
        "self._delete self._set_aside",
        ("deletes segments that compaction merged into the one before"),
        ("the offsets of the segment before"),
        ("the checkpoint of the cleaner covers them"),
        ("set aside as overlap"),
        (
            "tests/unit/storage/recovery/test_open_log.py::test_segments_that_were_merged_into_another_are_removed"
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
        "broker/replication/fetcher.py:Fetcher._truncate_before_fetching",
        "truncate_to",
        ("truncates a follower with records from before leader epochs to its high watermark"),
        ("the high watermark of this replica"),
        ("it was in its checkpoint"),
        ("without a checkpoint all records count as committed, and are set aside"),
        (
            "tests/unit/broker/replication/test_fetcher.py::test_a_log_from_before_epochs_is_cut_to_its_high_watermark"
        ),
    ),
    Removal(
        "broker/replication/fetcher.py:Fetcher._truncate_to_missing",
        "truncate_to",
        ("truncates a follower to the first record that a power failure has lost"),
        ("the gap that recovery found, above a recovery point that is known"),
        ("the leader has an offset for each record, in the same leader epoch"),
        ("the log stays as it is; what is truncated is set aside"),
        (
            "tests/unit/broker/replication/test_fetcher_lost_records.py::test_they_stay_missing_if_the_leader_has_not_all"
        ),
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
        "broker/replication/log_dir_mover.py:LogDirMover._truncate_in_parts",
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
    "broker/workers/preparation.py:Prepared.clean_up": ("rmtree", SOCKETS),
    "controller/tree/tree_file.py:_system_error": ("unlink", UNUSED),
    "controller/tree/tree_file.py:TreeFile._keep_others": ("unlink", NOT_ON_DISK),
    "controller/tree/tree_file.py:TreeFile._replace": ("os.replace unlink unlink", NOT_ON_DISK),
    "storage/directories/log_directories.py:LogDirectories.forget_new_meta_properties": (
        "fs.remove",
        UNUSED,
    ),
    "storage/recovery/recovery.py:_Loader._set_aside": ("fs.remove", PRIMITIVE),
    "storage/recovery/recovery.py:_Loader._load_epochs": ("fs.remove", DERIVED),
    "storage/recovery/recovery.py:_Loader._delete_old_snapshots": ("delete_snapshots", DERIVED),
    "storage/recovery/recovery.py:_Loader._check_epochs": (
        "truncate_from_end truncate_from_start",
        DERIVED,
    ),
    "storage/log/producer_replay.py:rebuild_producers": ("delete_snapshot", DERIVED),
    "storage/recovery/directory_repair.py:_set_aside": ("set_file_aside", PRIMITIVE),
    "storage/log/truncation.py:LogTruncator.truncate_fully_and_start_at": ("restart_at", PRIMITIVE),
    "storage/log/truncation.py:LogTruncator._truncate_to": (
        "truncate_from_end truncate_to",
        PRIMITIVE,
    ),
    "storage/log/truncation.py:LogTruncator._remove_segments": ("retire_segments", PRIMITIVE),
    "storage/log/truncation.py:_EndCopy.discard": ("fs.remove", UNUSED),
    "storage/log/segment.py:Segment.change_suffix": ("fs.replace fs.replace", PRIMITIVE),
    "storage/log/segment.py:Segment.truncate_indexes": ("truncate_to", DERIVED),
    "storage/log/parts_aside.py:copy_end_aside": ("fs.remove fs.replace", UNUSED),
    "storage/log/parts_aside.py:set_segment_aside": ("fs.replace", PRIMITIVE),
    "storage/log/local_log.py:LocalLog._remove_later": (
        "deletions.add fs.remove fs.replace",
        PRIMITIVE,
    ),
    "storage/log/local_log.py:LocalLog._retire_snapshot": (
        "deletions.add fs.remove retire_snapshot",
        DERIVED,
    ),
    "storage/index/index_file.py:IndexFile._empty": ("truncate", DERIVED),
    "storage/files/log_directory.py:LogDirectory._takes_writes": ("fs.remove", UNUSED),
    "storage/files/fs.py:replace_file": ("fs.replace fs.replace", PRIMITIVE),
    "storage/files/fs.py:rename_obstacle": ("fs.replace", UNUSED),
    "storage/files/fs.py:clear_path": ("fs.remove", DERIVED),
    "storage/directories/retirements.py:forget_note": ("fs.remove", DERIVED),
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
    "storage/files/fs.py:RealFileSystem.remove_tree": ("rmtree unlink", PRIMITIVE),
    "storage/files/set_aside.py:set_file_aside": ("fs.replace", PRIMITIVE),
    "storage/index/index_file.py:IndexFile._truncate": ("truncate", DERIVED),
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
    "storage/log/local_log.py:LocalLog._retire_files": (
        "change_suffix deletions.add fs.remove",
        PRIMITIVE,
    ),
    "storage/log/log.py:Log.begin_copy": ("truncate_fully_and_start_at", UNUSED),
    "storage/log/truncation.py:LogRetention._delete_first": (
        "advance_local_log_start delete_records_before retire_segments",
        PRIMITIVE,
    ),
    "storage/log/segment.py:Segment.undo_append": ("truncate_to truncate_to", DERIVED),
    "storage/log/segment.py:Segment.truncation.run": ("truncate", PRIMITIVE),
    "storage/log/segment_file.py:SegmentFile.remove_partial_write": ("truncate", UNUSED),
    "storage/log/segment_file.py:SegmentFile.truncate": ("truncate", PRIMITIVE),
    "storage/log/segment_file.py:SegmentFile.preallocate": ("truncate", UNUSED),
    "storage/log/segment_file.py:SegmentFile.trim": ("truncate", UNUSED),
    "storage/log/truncation.py:LogTruncator._ready": ("truncate_from_end", PRIMITIVE),
    "storage/log/truncation.py:LogTruncator._truncate_below_local": (
        "truncate_fully_and_start_at",
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
    "storage/producer/producer_state.py:ProducerState.retire_snapshot": ("fs.replace", DERIVED),
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
    "broker/replication/follower_truncation.py:FollowerTruncation._truncate_to_each": (
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
