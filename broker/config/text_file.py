"""Small text files that people write: passwords and JAAS files."""

from __future__ import annotations

import errno

PASSWORD_BYTES_MAX = 65_536


def read_text_file(path: str, limit: int) -> str:
    """The text, without the byte order mark that editors of Windows write.

    A pipe will do. Raises OSError, also if the file has more than `limit` bytes, and
    UnicodeDecodeError.
    """
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", path)
    return data.decode("utf-8-sig")
