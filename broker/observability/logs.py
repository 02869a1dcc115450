"""The broker's log: one line an event, on standard error.

As text, or with `ottla.log.format=json` one JSON object a line for programs. The levels of loggers
change at run time (`ottla configs set logger`, Kafka's broker loggers).

Modules log through the standard library, which costs them no import; structlog renders the lines,
theirs and those of libraries. What a line is about (`group`, `topic`, `partition`, `peer`, ...)
goes along as `extra=` and becomes a field of its own in JSON; the text has it in its words.

Texts of clients and peers are in many lines. Control characters are escaped here, in one place, so
that none of them forges a line or controls a terminal; the lines of a traceback are indented.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from time import localtime, monotonic, strftime
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ottla.broker.config.errors import ConfigError
from ottla.broker.observability.log_stream import log_stream
from ottla.broker.runtime.printable import printable, printable_json, printable_lines
from ottla.broker.security.audit.security_log import AUDIT_LOGGER, LOGGERS

if TYPE_CHECKING:
    from structlog.stdlib import ProcessorFormatter
    from structlog.typing import EventDict, Processor, WrappedLogger

    from ottla.broker.config.broker_config import BrokerConfig


TEXT = "text"

# ZooKeeper's client retries several times a second and logs the same line each time.
_CHATTY = ("ottla.zookeeper.client", "kazoo")
_QUIET_SECONDS = 30.0
# Its messages carry addresses and errors: there are few of them, this is only a bound.
_REMEMBERED = 64


class LineFormatter(logging.Formatter):
    """structlog's formatter.

    Its import takes 15 ms of processor time, a twentieth of a start, and would hold up the loop of
    a broker that serves clients already. So JSON has it made with the first line, and text takes
    the plain way to the same line until `prepare` was called.
    """

    #: The number of the worker that this process is, set once for the log and the security log;
    #: None without workers.
    worker: int | None = None

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._inner: ProcessorFormatter | None = None

    def prepare(self) -> None:
        """Load structlog; called in a thread a while after the start."""
        if self._inner is None:
            self._inner = _processor_formatter(self, self._as_json)

    def format(self, record: logging.LogRecord) -> str:
        if self._as_json:
            self.prepare()
        inner = self._inner
        if inner is not None:
            line = inner.format(record)
            return printable_json(line) if self._as_json else line
        error = self.formatException(record.exc_info) if record.exc_info else None
        level, name, text = record.levelname, record.name, str(record.getMessage())
        return _line(record.created, level, self.source(name), text, error)

    def source(self, name: str) -> str:
        """The logger of a line, and the worker in front of it."""
        return name if self.worker is None else f"[worker {self.worker}] {name}"


def _processor_formatter(lines: LineFormatter, as_json: bool) -> ProcessorFormatter:
    _import_structlog()
    from structlog import processors, stdlib

    form: list[Processor] = [partial(_as_text, lines)]
    if as_json:
        form = [partial(_fields_in_order, lines), processors.JSONRenderer(ensure_ascii=False)]
    return stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            stdlib.add_logger_name,
            stdlib.add_log_level,
            stdlib.ExtraAdder(),
            _add_time,
        ],
        processors=[
            stdlib.ProcessorFormatter.remove_processors_meta,
            processors.format_exc_info,
            *form,
        ],
    )


def _import_structlog() -> None:
    """Without rich, which structlog would load for coloured tracebacks that are not used here:
    that is most of the time and memory of its import. The command line may have it already."""
    absent: dict[str, ModuleType] = sys.modules
    hidden = "rich" not in absent and "structlog" not in absent
    if hidden:
        absent["rich"] = None  # type: ignore[assignment]  # "there is none"
    try:
        import structlog  # noqa: F401
    finally:
        if hidden:
            del absent["rich"]


def _add_time(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """When the line was logged, which may be a little before it is rendered."""
    event["created"] = event["_record"].created
    return event


def _as_text(lines: LineFormatter, _: WrappedLogger, __: str, event: EventDict) -> str:
    return _line(
        event["created"],
        event["level"].upper(),
        lines.source(event["logger"]),
        str(event["event"]),
        event.get("exception"),
    )


def _line(created: float, level: str, logger: str, text: str, error: str | None) -> str:
    """One line, and the indented lines of a traceback: no text can look like another line."""
    local = localtime(created)
    seconds, zone = strftime("%Y-%m-%d %H:%M:%S", local), strftime("%z", local)
    line = f"{seconds}.{int(created * 1000) % 1000:03}{zone} {level:<7} {logger}  {printable(text)}"
    if error is None:
        return line
    return "\n  ".join((line, *printable_lines(error).splitlines()))


def _fields_in_order(
    lines: LineFormatter, _: WrappedLogger, __: str, event: EventDict
) -> EventDict:
    """{"time", "level", "logger", "event"}, what it is about, and after a failure "error"."""
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(event.pop("created"), UTC)
    line: dict[str, Any] = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": event.pop("level"),
        "logger": event.pop("logger"),
        "event": event.pop("event"),
    }
    if lines.worker is not None:
        line["worker"] = lines.worker
    error = event.pop("exception", None)
    line.update(event)
    if error is not None:
        line["error"] = error
    return line


class RepeatFilter(logging.Filter):
    """Lets the same message through once in a while only."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), monotonic()
        last = self._last.get(text)
        if last is not None and now - last < _QUIET_SECONDS:
            return False
        if len(self._last) >= _REMEMBERED:
            self._last.clear()
        self._last[text] = now
        return True


def configure_logging(config: BrokerConfig) -> LineFormatter:
    """Set up the loggers of a process that runs one broker; give what forms its lines.

    Raises ConfigError if the file of the security log cannot be opened.
    """
    handler = logging.StreamHandler(log_stream(sys.stderr))
    formatter = LineFormatter(as_json=config.ottla_log_format != TEXT)
    handler.setFormatter(formatter)
    level = config.ottla_log_level.upper()
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    for name in _CHATTY:
        logger = logging.getLogger(name)
        logger.addFilter(RepeatFilter())
        if level != "DEBUG":
            logger.setLevel(logging.WARNING)
    # Of its own, so that the level of another logger does not switch it off at run time.
    logging.getLogger(AUDIT_LOGGER).setLevel(level)
    path = config.ottla_audit_log_file
    if path:
        from ottla.broker.observability.logs import open_audit_log

        lines = LineFormatter(as_json=config.ottla_audit_log_format != TEXT)
        try:
            open_audit_log(path, lines, level)
        except OSError as error:
            raise ConfigError(
                f"ottla.audit.log.file: cannot open {path}: {error.strerror or error}."
            ) from None
    return formatter


# The log has names and addresses: it is for the broker and its group.
MODE = 0o640


class AuditFile(WatchedFileHandler):
    """Opened again when a tool has moved it (logrotate). A line that cannot be written there,
    because the disk is full, goes to the broker's log."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        os.chmod(self.baseFilename, MODE)
        return stream

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (of logging)
        logging.getLogger().handle(record)


def open_audit_log(path: str, lines: logging.Formatter, level: str) -> AuditFile:
    """Send the lines of the security log to a file instead of the broker's log. OSError when it
    cannot be opened.

    They are written whatever the level of the broker's log is; only DEBUG adds what is allowed.
    """
    handler = AuditFile(path)
    handler.setFormatter(lines)
    for logger in LOGGERS:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(level if level == "DEBUG" else "INFO")
    return handler
