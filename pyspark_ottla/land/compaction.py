"""Joins the small files of landed tables: `ottla spark land --compact`.

A run every five minutes leaves a hundred thousand files a year. Delta and Iceberg have commands of
their own for that. Spark's sink for Parquet has none: its readers read the files that the log in
`_spark_metadata` lists, and every tenth file of that log, `N.compact`, lists all files so far. This
module writes the small ones among them again as few, and replaces the log file by one that lists
those instead, in one atomic step: readers see either.

The order survives a kill at any point. New files are written aside, counted, and moved into the
table under names that a plan lists, which is written before. Then the log is replaced. Then the old
files are moved aside, where a later run deletes them, once they are an hour old. A run that finds a
plan finishes it, or takes its files away if the log does not list them.

The query must not run meanwhile, so this is done before it starts.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.land.plan import DELTA, ICEBERG, ICEBERG_CATALOG, LandOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Files of at least this size stay as they are.
SMALL_BYTES = 64 << 20
#: About the size of the files that are made.
FILE_BYTES = 128 << 20
#: Fewer small files of a folder are not worth the work. A folder that gets a file every five
#: minutes is written again every 80 minutes.
SMALL_FILES_MIN = 16
#: Folders in one run, those with most files first: each is a job of Spark, of about half a second.
FOLDERS_MAX = 500
#: How long replaced files stay aside, for whoever has to look into what happened.
KEEP_SECONDS = 3600

LOG = "_spark_metadata"
ASIDE = "_compaction"
PLAN = "plan.json"
_VERSION = "v1"
_MANAGERS = (  # by the version of Spark
    "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.CheckpointFileManager",
)

Print = Callable[[str], None]


class Entry(NamedTuple):
    """A file in Spark's log of a sink, as it is there."""

    path: str  # a URI
    size: int
    text: str

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


class Files:
    """A file system of Hadoop, by Spark's JVM. Paths are URIs."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        machine: Any = spark._jvm  # of Py4J, whose objects have no types
        self._machine = machine
        self._settings = spark._jsc.hadoopConfiguration()
        path = machine.org.apache.hadoop.fs.Path(folder)
        self._system = path.getFileSystem(self._settings)
        self.root = self._system.makeQualified(path).toUri().toString()

    def _path(self, path: str) -> Any:
        return self._machine.org.apache.hadoop.fs.Path(self._machine.java.net.URI(path))

    def plain(self, path: str) -> str:
        """As Spark's reader takes it: without the escapes of a URI."""
        found: str = self._path(path).toString()
        return found

    def names(self, folder: str) -> dict[str, tuple[int, int]]:
        """(size, time of the last change in ms) by name; empty without the folder."""
        path = self._path(folder)
        if not self._system.exists(path):
            return {}
        return {
            status.getPath().getName(): (status.getLen(), status.getModificationTime())
            for status in self._system.listStatus(path)
        }

    def read(self, path: str) -> str:
        stream = self._system.open(self._path(path))
        try:
            found: str = self._machine.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return found
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """The whole file or the old one, in the way in which Spark writes its own logs."""
        target = self._path(path)
        self._system.mkdirs(target.getParent())
        manager = self._manager().create(target.getParent(), self._settings)
        stream = manager.createAtomic(target, True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def _manager(self) -> Any:
        for name in _MANAGERS:
            found = self._machine
            for part in name.split("."):
                found = getattr(found, part)
            if type(found).__name__ == "JavaClass":
                return found
        raise ConnectorError(
            errors.INVALID_OPTION, "--compact does not know how this Spark writes its logs"
        )

    def move(self, path: str, target: str) -> None:
        """Moves a file that is still there."""
        source, to = self._path(path), self._path(target)
        if not self._system.exists(source):
            return
        self._system.mkdirs(to.getParent())
        if not self._system.rename(source, to):
            raise ConnectorError(errors.INVALID_OPTION, f"Cannot move {path} to {target}")

    def delete(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    def entry(self, path: str) -> Entry:
        """What Spark's log says of a file."""
        status = self._system.getFileStatus(self._path(path))
        fields = {
            "path": path,
            "size": status.getLen(),
            "isDir": False,
            "modificationTime": status.getModificationTime(),
            "blockReplication": status.getReplication(),
            "blockSize": status.getBlockSize(),
            "action": "add",
        }
        return Entry(path, fields["size"], json.dumps(fields, separators=(",", ":")))


def compact(spark: SparkSession, options: LandOptions, topic: str, report: Print) -> None:
    """Joins the small files of one table, which is there."""
    if options.format == DELTA:
        return  # by a setting of the session: after a batch that leaves many small files
    if options.format == ICEBERG:
        call = f"CALL {ICEBERG_CATALOG}.system.rewrite_data_files(table => '`{topic}`', "
        call += f"options => map('min-input-files', '{SMALL_FILES_MIN}'))"
        row = spark.sql(call).collect()[0]
        if row[0]:
            report(f"{topic}: {row[0]} small files are {row[1]} now")
        return
    found = ParquetCompaction(spark, options.table(topic), options.file_records_max).run()
    if found[0]:
        report(f"{topic}: {found[0]} small files are {found[1]} now")


class ParquetCompaction:
    """One run over one table."""

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        file_records_max: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._spark = spark
        self._file_records_max = file_records_max
        self._now = now
        files = self.files = Files(spark, table)
        self._log, self._aside = f"{files.root}/{LOG}", f"{files.root}/{ASIDE}"

    def run(self) -> tuple[int, int]:
        """(files that were replaced, files that replace them). Raises ConnectorError."""
        self._finish()
        self._delete_replaced()
        number = self._latest()
        if number is None:
            return 0, 0
        entries = self._entries(number)
        groups = small_files(entries)
        if not groups:
            return 0, 0
        made = f"{self._aside}/made-{uuid.uuid4().hex}"
        moves: dict[str, str] = {}
        for index, group in enumerate(groups):
            moves |= self._join(group, f"{made}/{index}")
        old = [entry.path for group in groups for entry in group]
        plan = {"new": list(moves.values()), "old": old}
        self.files.write(f"{self._aside}/{PLAN}", json.dumps(plan))
        for path, target in moves.items():
            self.files.move(path, target)
        replaced = frozenset(old)
        kept = [entry for entry in entries if entry.path not in replaced]
        kept += [self.files.entry(path) for path in moves.values()]
        text = "\n".join([_VERSION, *(entry.text for entry in kept)])
        self.files.write(f"{self._log}/{number}.compact", text)
        self._finish()
        return len(old), len(moves)

    def _latest(self) -> int | None:
        numbers = [
            int(name.removesuffix(".compact"))
            for name in self.files.names(self._log)
            if name.endswith(".compact") and name[0].isdigit()
        ]
        return max(numbers, default=None)

    def _entries(self, number: int) -> list[Entry]:
        path = f"{self._log}/{number}.compact"
        return parse_log(path, self.files.read(path))

    def _join(self, group: Sequence[Entry], aside: str) -> dict[str, str]:
        """Writes the records of some files of a folder again; by the paths of the new files where
        they belong."""
        plain = [self.files.plain(entry.path) for entry in group]
        reader = self._spark.read.option("mergeSchema", "true").option("__globPaths__", "false")
        frame = reader.parquet(*plain)
        count = -(-sum(entry.size for entry in group) // FILE_BYTES)
        writer = frame.coalesce(count).write.option("maxRecordsPerFile", self._file_records_max)
        writer.parquet(self.files.plain(aside))
        before = frame.count()
        after = self._spark.read.parquet(self.files.plain(aside)).count()
        if before != after:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"Compaction of {group[0].folder} wrote {after} of {before} records; the table is "
                "as it was",
            )
        names = [name for name in self.files.names(aside) if name.endswith(".parquet")]
        return {f"{aside}/{name}": f"{group[0].folder}/compacted-{name}" for name in names}

    def _finish(self) -> None:
        """Ends what a plan has begun, of this run or of one that was killed."""
        names = self.files.names(self._aside)
        if PLAN in names:
            plan = json.loads(self.files.read(f"{self._aside}/{PLAN}"))
            number = self._latest()
            listed = set() if number is None else {e.path for e in self._entries(number)}
            if listed.issuperset(plan["new"]):
                place = f"{self._aside}/replaced-{int(self._now())}"
                for index, path in enumerate(plan["old"]):
                    self.files.move(path, f"{place}/{index}-{path.rpartition('/')[2]}")
            else:
                for path in plan["new"]:
                    self.files.delete(path)
            self.files.delete(f"{self._aside}/{PLAN}")
        for name in names:
            if name.startswith("made-"):
                self.files.delete(f"{self._aside}/{name}")

    def _delete_replaced(self) -> None:
        for name in self.files.names(self._aside):
            begun = name.removeprefix("replaced-")
            if begun.isdigit() and int(begun) + KEEP_SECONDS <= self._now():
                self.files.delete(f"{self._aside}/{name}")


def parse_log(path: str, text: str) -> list[Entry]:
    """The files in a log of Spark's sink. Raises ConnectorError if it is of another version."""
    version, *lines = text.splitlines()
    if version != _VERSION:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"{path} has version {version}, and --compact knows {_VERSION}",
            "Land without --compact",
        )
    entries = []
    for line in lines:
        fields = json.loads(line)
        if fields["action"] != "add" or fields["isDir"]:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"{path} has an entry that --compact does not know: {line[:200]}",
                "Land without --compact",
            )
        entries.append(Entry(fields["path"], fields["size"], line))
    return entries


def small_files(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The small files by folder, of folders that have enough of them."""
    folders: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.size < SMALL_BYTES:
            folders[entry.folder].append(entry)
    groups = [group for group in folders.values() if len(group) >= SMALL_FILES_MIN]
    return sorted(groups, key=len, reverse=True)[:FOLDERS_MAX]
