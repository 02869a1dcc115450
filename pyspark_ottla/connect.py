"""Registration in Spark Connect, where the server learns of this package from the session's files.

The server creates some sources outside of the session that registered the class: that of a stream
with a schema from the user, for example. The Python process then gets the directory above those of
all sessions, and neither this package nor the module of the option `transform` can be imported.
`session_source` therefore adds a file to the session, with a name that cannot be guessed, and
returns a class that looks for the directory with this file before it imports the package.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def session_source(spark: SparkSession) -> type[DataSource]:
    """The class to register in that session; adds a file to the session."""
    marker = f"ottla_session_{uuid.uuid4().hex}.py"
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, marker)
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                "# The Spark connector of Ottla finds the files of its session by this name.\n"
            )
        spark.addArtifacts(path, pyfile=True)
    return source_of(marker)


def source_of(marker: str) -> type[DataSource]:
    """A class that stands for DefaultSource and is pickled with its code.

    What is defined in a function is pickled so. Its methods import what they need themselves.
    """

    class SessionSource(DataSource):
        """Creates a DefaultSource, wherever the files of the session are."""

        def __new__(cls, options: Any) -> Any:
            import importlib
            import os
            import sys

            from pyspark.core.files import SparkFiles

            def use_directory_of_session(root: str) -> None:
                for entry in os.scandir(root):
                    if os.path.exists(os.path.join(entry.path, marker)):
                        below = os.path.join(root, "")
                        wanted = [path[len(below) :] for path in sys.path if path.startswith(below)]
                        paths = [os.path.join(entry.path, name) for name in wanted]
                        sys.path[1:1] = [*filter(os.path.exists, paths), entry.path]
                        SparkFiles._root_directory = entry.path

            if SparkFiles._is_running_on_worker:
                root = SparkFiles.getRootDirectory()
                if os.path.isdir(root) and not os.path.exists(os.path.join(root, marker)):
                    use_directory_of_session(root)
                    importlib.invalidate_caches()
            return importlib.import_module("pyspark_ottla").DefaultSource(options)

        @classmethod
        def name(cls) -> str:
            return "ottla"

    return SessionSource
