"""The rules of ZooKeeper's PathUtils for the names of znodes."""

import re

from ottla.controller.zookeeper_server.codes import Code, RequestError

# Control characters, and those that UTF-8 or the tools cannot show.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def check_path(path: str) -> None:
    """Raises BAD_ARGUMENTS if the path is not absolute, ends with a slash or has an empty,
    ``.`` or ``..`` part or a character that is not allowed."""
    if path == "/":
        return
    if not path.startswith("/") or _FORBIDDEN.search(path):
        raise RequestError(Code.BAD_ARGUMENTS)
    if any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise RequestError(Code.BAD_ARGUMENTS)
