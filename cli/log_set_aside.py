"""`ottla log set-aside`: what brokers set aside in log directories (docs/operations.md)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.properties_file import read_properties
from ottla.cli.app import family
from ottla.cli.output import (
    Cell,
    Failure,
    bytes_text,
    note,
    print_json,
    print_rows,
    say,
    time_text,
    usage,
)
from ottla.cli.session import JsonOption, reported
from ottla.protocol.uuids import uuid_to_string
from ottla.storage.directories.log_directories import DirectoryLock
from ottla.storage.errors import CorruptFile, DirectoryInUse
from ottla.storage.files.fs import FILE_MODE, RealFileSystem
from ottla.storage.files.layout import FUTURE_DIRECTORY_SUFFIX, LOCK_FILE
from ottla.storage.files.set_aside import SetAside
from ottla.storage.inspection.set_aside_restore import (
    Refused,
    Restorer,
    find_set_aside,
    is_log_directory,
    item_at,
    root_of,
    summary_of,
)

EXAMPLES = """\
  ottla log set-aside list ottla-data
  ottla log set-aside list --config server.properties --json
  ottla log set-aside restore --topic orders ottla-data
  ottla log set-aside restore --all --config server.properties --replace
  ottla log set-aside discard --topic orders --partition 0 ottla-data
"""

app = family("Show, take back and delete records that a broker has set aside.", EXAMPLES)

DirectoriesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="DIRECTORY...", help="Log directories.", show_default=False),
]
PathsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH...",
        help="What `list` prints, or log directories with --topic or --all.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    str, typer.Option("--config", help="Properties file of the broker: its log.dirs.")
]
LogDirOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log-dir", help="Another log directory of the broker; repeatable.", show_default=False
    ),
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Only this topic; repeatable.", show_default=False),
]
PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", help="Only this partition; repeatable.", show_default=False),
]
AllOption = Annotated[bool, typer.Option("--all", help="All of the log directories.")]


class OwnersFileSystem(RealFileSystem):
    """Files that root makes belong to the owner of their directory, whose broker writes them."""

    def open(self, path: str, flags: int) -> int:
        descriptor = os.open(path, flags, FILE_MODE)
        if flags & os.O_CREAT:
            give_to_owner(descriptor, os.path.dirname(path))
        return descriptor


def give_to_owner(file: str | int, directory: str) -> None:
    """Gives a file, or the open one of a descriptor, to the owner of a directory, if root runs."""
    if os.geteuid() == 0:
        owner = os.stat(directory)
        os.chown(file, owner.st_uid, owner.st_gid)


class _Chosen:
    """The items that the arguments name, and the log directories."""

    def __init__(
        self,
        paths: Sequence[str],
        config: str,
        log_dirs: Sequence[str],
        topics: Sequence[str],
        partitions: Sequence[int],
        every: bool,
    ) -> None:
        self.fs = OwnersFileSystem()
        self.items: list[SetAside] = []
        #: Paths that are nothing: a run before may have been interrupted at their end.
        self.gone: list[str] = []
        configured = _log_dirs(config)
        others = [_log_directory(self.fs, path) for path in (*configured, *log_dirs)]
        directories, items = _divided(self.fs, paths)
        is_filtered = bool(topics or partitions or every)
        if is_filtered and items:
            raise usage(f"{items[0]} names one item; leave out --all, --topic and --partition.")
        if directories and not is_filtered:
            raise usage(f"{directories[0]} is a log directory; add --topic or --all.")
        if not items and not is_filtered:
            raise usage("name what is set aside, or log directories with --topic or --all.")
        searched = directories or (configured if is_filtered else [])
        if is_filtered and not searched:
            raise usage("name log directories, or --config with the properties of the broker.")
        for path in items:
            parent = path.rpartition("/")[0]
            if os.path.lexists(path) or not is_log_directory(self.fs, parent):
                self.items.append(item_at(self.fs, path))
            else:
                self.gone.append(path)
        roots = _distinct([*map(os.path.abspath, searched), *others])
        found = find_set_aside(self.fs, roots) if is_filtered else []
        within = set(map(os.path.abspath, searched))
        self.items += [
            item
            for item in found
            if root_of(item) in within
            and (every or not topics or item.topic in topics)
            and (not partitions or item.partition in partitions)
        ]
        for item in self.items:
            _refuse_links(item)
        own = [root_of(item) for item in self.items]
        own += [path.rpartition("/")[0] for path in self.gone]
        self.roots = _distinct([*own, *roots])
        self.knows_all_roots = bool(configured or log_dirs) or len(self.roots) > 1


@app.command("list")
def list_items(
    directories: DirectoriesArgument = None,
    config: ConfigOption = "",
    topic: TopicOption = None,
    json: JsonOption = False,
) -> None:
    """List what is set aside in log directories. Changes nothing; a broker may run."""

    def run() -> None:
        fs = RealFileSystem()
        roots = [_log_directory(fs, path) for path in (*(directories or ()), *_log_dirs(config))]
        if not roots:
            raise usage("name log directories, or --config with the properties of the broker.")
        items = [
            each
            for each in find_set_aside(fs, _distinct(roots))
            if not topic or each.topic in topic
        ]
        rows = [_row(fs, item) for item in items]
        if json:
            print_json(rows)
            return
        columns = ["topic", "partition", "reason", "attention", "first", "next", "size", "path"]
        print_rows(map(_readable, rows), columns, empty="Nothing is set aside.")
        for row in rows:
            if row["detail"]:
                say(f"\n{row['path']}: {row['detail']}")

    reported(run, as_json=json)


@app.command("restore")
def restore(
    paths: PathsArgument = None,
    config: ConfigOption = "",
    log_dir: LogDirOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    every: AllOption = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Set aside a log that is in the place of another one."),
    ] = False,
) -> None:
    """Take back what is set aside. The broker must be stopped.

    The exit code is 1 if something was not taken back: the reason is printed, and what to do.
    """

    def run() -> None:
        chosen = _chosen(paths, config, log_dir, topic, partition, every)
        whole = [each for each in chosen.items if each.is_log]
        for each in whole:
            same = [other.path for other in whole if other[1:3] == each[1:3]]
            if len(same) > 1:
                raise Failure(
                    f"{', '.join(same)} are logs of one partition, {each.topic}-{each.partition}; "
                    "name the one to restore."
                )
        parts = sorted(
            (each for each in chosen.items if not each.is_log),
            key=lambda each: (root_of(each), each.topic, each.partition, each.base_offset or 0),
        )
        with _locked(chosen.roots):
            restorer = _restorer(chosen)
            _finish(restorer, chosen)
            _each(
                [*whole, *parts], lambda item: restorer.restore(item, replace=replace), "restored"
            )

    reported(run)


@app.command("discard")
def discard(
    paths: PathsArgument = None,
    config: ConfigOption = "",
    topic: TopicOption = None,
    partition: PartitionOption = None,
    every: AllOption = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")
    ] = False,
) -> None:
    """Delete what is set aside, with its records. A broker may run."""

    def run() -> None:
        chosen = _chosen(paths, config, None, topic, partition, every)
        for item in chosen.items:
            about = f"{item.path}, {summary_of(chosen.fs, item)}"
            note(f"{about} ({item.reason}{': ' if item.detail else ''}{item.detail})")
        if (
            chosen.items
            and not yes
            and not typer.confirm(f"Delete {len(chosen.items)} items with their records?", err=True)
        ):
            raise Failure("nothing was deleted.")
        # A broker fills a future log, unless it has no current one, which it knows at a start only.
        moving = [each for each in chosen.items if each.path.endswith(FUTURE_DIRECTORY_SUFFIX)]
        with _locked({root_of(each): None for each in moving}):
            restorer = _restorer(chosen)
            _finish(restorer, chosen)
            _each(chosen.items, restorer.discard, "deleted")

    reported(run)


def _chosen(
    paths: list[str] | None,
    config: str,
    log_dirs: list[str] | None,
    topics: list[str] | None,
    partitions: list[int] | None,
    every: bool,
) -> _Chosen:
    try:
        return _Chosen(paths or (), config, log_dirs or (), topics or (), partitions or (), every)
    except Refused as reason:
        raise Failure(f"{reason}.") from None


def _restorer(chosen: _Chosen) -> Restorer:
    now_ms = int(time.time() * 1000)
    return Restorer(chosen.fs, chosen.roots, now_ms, knows_all_roots=chosen.knows_all_roots)


def _finish(restorer: Restorer, chosen: _Chosen) -> None:
    """Completes runs that were interrupted. Raises Failure for a path that is nothing."""
    for path in chosen.gone:
        done = restorer.finish(path)
        if done is None:
            raise Failure(
                f"{path} does not exist; `ottla log set-aside list` shows what is set aside."
            )
        say(done)


def _each(items: Sequence[SetAside], work: object, done: str) -> None:
    assert callable(work)
    failures = 0
    for item in items:
        try:
            say(work(item))
        except (Refused, CorruptFile) as reason:
            failures += 1
            note(f"ottla: {reason}.")
    if failures:
        raise Failure(f"{failures} of {len(items)} were not {done}.")
    if not items:
        say("Nothing is set aside.")


@contextmanager
def _locked(roots: Sequence[str] | dict[str, None]) -> Iterator[None]:
    with ExitStack() as locks:
        for root in roots:
            try:
                locks.callback(DirectoryLock(root).release)
                give_to_owner(f"{root}/{LOCK_FILE}", root)
            except DirectoryInUse:
                raise Failure(
                    f"a broker uses log directory {root}; stop the broker first."
                ) from None
        yield


def _distinct(paths: Sequence[str]) -> list[str]:
    """Without other names of the same directory: a link, or a repetition."""
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _log_dirs(config: str) -> list[str]:
    if not config:
        return []
    try:
        settings = {item.name: item.value for item in read_properties(config)}
    except ConfigError as error:
        raise usage(f"--config: {error}") from None
    found = settings.get("log.dirs") or settings.get("log.dir") or ""
    directories = [each.strip() for each in found.split(",") if each.strip()]
    if not directories:
        raise usage(f"--config: {config} has no log.dirs; name the log directories instead.")
    return directories


def _log_directory(fs: RealFileSystem, path: str) -> str:
    absolute = os.path.abspath(path)
    if not os.path.isdir(absolute):
        raise usage(f"{path} is not a directory.")
    if not is_log_directory(fs, absolute):
        raise usage(f"{path} is not a log directory (log.dirs): it has no meta.properties.")
    return absolute


def _divided(fs: RealFileSystem, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """(log directories, other paths), absolute. Raises Failure for paths with `..`."""
    directories: list[str] = []
    others: list[str] = []
    for path in paths:
        # `a/../b` is not `b` if `a` is a symbolic link.
        if ".." in path.split("/"):
            raise usage(f"{path}: name it without `..`.")
        absolute = os.path.abspath(path)
        is_directory = os.path.isdir(absolute) and is_log_directory(fs, absolute)
        (directories if is_directory else others).append(absolute)
    return directories, others


def _refuse_links(item: SetAside) -> None:
    """Links below a log directory lead to files of others."""
    path, root = item.path, root_of(item)
    while path != root:
        if os.path.islink(path):
            raise Failure(f"{path} is a symbolic link; brokers set nothing aside that way.")
        path = path.rpartition("/")[0]


def _row(fs: RealFileSystem, item: SetAside) -> dict[str, Cell]:
    try:
        found = summary_of(fs, item)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):  # discarded meanwhile
            note(f"ottla: {error.filename or item.path}: {error.strerror or error}.")
        first = following = size = topic_id = None
    else:
        first, following, size = found.first_offset, found.next_offset, found.size
        topic_id = None if found.topic_id is None else uuid_to_string(found.topic_id)
    return {
        "topic": item.topic,
        "partition": item.partition,
        "reason": item.reason.value,
        "detail": item.detail,
        "needs_attention": item.needs_attention,
        "topic_id": topic_id,
        "first_offset": first,
        "next_offset": following,
        "bytes": size,
        "set_aside": time_text(item.set_aside_ms),
        "path": item.path,
    }


def _readable(row: dict[str, Cell]) -> dict[str, Cell]:
    size = row["bytes"]
    return {
        **row,
        "attention": row["needs_attention"],
        "first": row["first_offset"],
        "next": row["next_offset"],
        "size": bytes_text(size) if isinstance(size, int) else None,
    }
