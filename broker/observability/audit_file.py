"""The file of the security log (`ottla.audit.log.file`)."""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler

from ottla.broker.security.audit.security_log import LOGGERS

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
    """Sends the lines of the security log to a file instead of the broker's log. OSError when it
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
