"""The errors for a Python that lacks a package, which name the host, the Python and the package."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

if TYPE_CHECKING:
    from ottla.protocol.records.errors import CodecUnavailableError


def missing_package(task: str, error: ImportError) -> ConnectorError:
    """The error for an executor on which `task`, reading or writing, cannot be imported."""
    return ConnectorError(
        errors.MISSING_DEPENDENCY,
        f"The Python of the executor {platform.node()} ({sys.executable}) lacks a package "
        f"that {task} needs: {error}",
        "Install pyarrow and numpy there, as on the driver; "
        "the connector itself must be installed or go with the job (--py-files)",
    )


def missing_codec(records: str, error: CodecUnavailableError) -> ConnectorError:
    """The error for records that cannot be compressed or decompressed."""
    return ConnectorError(
        errors.MISSING_DEPENDENCY,
        f"{records} need the compression codec {error.codec}, for which the Python of "
        f"{platform.node()} ({sys.executable}) has no library",
        f"Install the package {error.package} there, or a pyarrow that was built with "
        f"{error.codec}",
    )
