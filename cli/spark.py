"""`ottla spark`: what Spark jobs need of Ottla."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ottla import __version__
from ottla.cli.app import family
from ottla.cli.output import Failure, usage
from ottla.cli.session import reported
from ottla.cli.spark_package import NoConnectorError, write_package

app = family(
    "The Spark connector: write a zip to ship with a job.",
    """\
  ottla spark package
  ottla spark package --output /tmp/connector.zip
  spark-submit --py-files pyspark_ottla.zip job.py""",
)


@app.callback()
def spark() -> None:
    """The Spark connector: write a zip to ship with a job."""


@app.command()
def package(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The zip to write.")
    ] = Path("pyspark_ottla.zip"),
) -> None:
    """Write the Spark connector as one zip of Python source.

    It goes with a job by --py-files, spark.submit.pyFiles, SparkContext.addPyFile or, in Spark
    Connect, addArtifacts(pyfile=True). The cluster's Python needs pyarrow and numpy, nothing else.
    """

    def run() -> None:
        if output.suffix != ".zip":
            raise usage(f"the file {output} must end in .zip: Spark takes no other name")
        if not output.parent.is_dir():
            raise Failure(f"cannot write {output}: there is no directory {output.parent}")
        try:
            size = write_package(output)
        except (NoConnectorError, OSError) as error:
            raise Failure(f"cannot write {output}: {error}") from None
        print(f"wrote {output}: the connector of ottla {__version__}, {size} bytes")

    reported(run)
