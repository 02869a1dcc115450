"""`ottla spark`: what Spark jobs need of Ottla."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ottla import __version__
from ottla.cli.app import family
from ottla.cli.client_properties import read_client_properties
from ottla.cli.output import Failure, usage
from ottla.cli.session import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    CommandConfigOption,
    reported,
)
from ottla.cli.spark_land import BAD_RECORDS, FORMATS, LandRequest, land_options
from ottla.cli.spark_package import NoConnectorError, write_package
from ottla.cli.spark_submit import (
    DELTA,
    ICEBERG,
    TABLE_PACKAGES,
    Submission,
    parse_settings,
    submit,
)

app = family(
    "The Spark connector: land topics as tables, run jobs, write a zip to ship with a job.",
    """\
  ottla spark package
  ottla spark package --output /tmp/connector.zip
  spark-submit --py-files pyspark_ottla.zip job.py
  ottla spark run job.py input.csv
  ottla spark run --master spark://master:7077 --with delta job.py
  ottla spark land orders payments --to /data/tables --available-now
  ottla spark land orders --to s3a://lake/tables --format iceberg \\
      --decode avro --schema-registry http://registry:8081""",
)

# Partitions by date and hour are the same on every machine, and no hour comes twice a year.
UTC = ("spark.sql.session.timeZone", "UTC")

MasterOption = Annotated[
    str, typer.Option("--master", help="Spark's master; without it this machine, all cores.")
]
DeployModeOption = Annotated[
    str, typer.Option("--deploy-mode", help="client or cluster: where the driver runs.")
]
PackageOption = Annotated[
    list[str] | None,
    typer.Option("--package", help="Maven coordinates of a jar; repeatable."),
]
PyFilesOption = Annotated[
    list[str] | None, typer.Option("--py-files", help="A module or zip of the job; repeatable.")
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark, name=value; repeatable.")
]


@app.callback()
def spark() -> None:
    """The Spark connector: land topics as tables, run jobs, write a zip to ship with a job."""


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


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]", show_default=False)
    ] = None,
    master: MasterOption = "",
    deploy_mode: DeployModeOption = "",
    tables: Annotated[
        list[str] | None,
        typer.Option("--with", help=f"Jars and settings of {' or '.join(TABLE_PACKAGES)}."),
    ] = None,
    packages: PackageOption = None,
    py_files: PyFilesOption = None,
    conf: ConfOption = None,
) -> None:
    """Run a job with the connector: spark-submit with its zip, and format("ottla") registered.

    Options stand before the file; what follows it are the job's own arguments.
    """

    def start() -> None:
        if not file.is_file():
            raise Failure(f"there is no file {file}")
        unknown = [table for table in tables or [] if table not in TABLE_PACKAGES]
        if unknown:
            raise usage(f"--with {unknown[0]}: it can be {' or '.join(TABLE_PACKAGES)}")
        submission = Submission(
            master,
            check_deploy_mode(deploy_mode),
            tuple(tables or ()),
            tuple(packages or ()),
            tuple(py_files or ()),
            parse_settings(conf or ()),
        )
        exit_with(submit(submission, "job_runner", file, "", arguments or ()))

    reported(start)


@app.command()
def land(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)],
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Folder of the tables; one for each topic.")
    ],
    format: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "parquet",
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            "--partition-by", help="date, hour, a column, or a field (value.country); repeatable."
        ),
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when what is there now is in the tables.")
    ] = False,
    trigger_seconds: Annotated[
        int, typer.Option("--trigger-seconds", min=0, help="Time from batch to batch.")
    ] = 60,
    decode: Annotated[
        str, typer.Option("--decode", help="Format of values: raw, string, json, avro, protobuf.")
    ] = "raw",
    decode_key: Annotated[str, typer.Option("--decode-key", help="Format of keys.")] = "raw",
    schema: Annotated[
        Path | None, typer.Option("--schema", metavar="FILE", help="Schema of the values.")
    ] = None,
    schema_registry: Annotated[
        str, typer.Option("--schema-registry", metavar="URL", help="Registry of their schemas.")
    ] = "",
    bad_records: Annotated[
        str,
        typer.Option(
            "--bad-records",
            help=f"{', '.join(BAD_RECORDS)}: what becomes of records that cannot be decoded.",
        ),
    ] = "fail",
    max_file_records: Annotated[
        int, typer.Option("--max-file-records", min=1, help="Rows of a file at most.")
    ] = 1_000_000,
    max_batch_mib: Annotated[
        int, typer.Option("--max-batch-mib", min=1, help="About so much is read for a batch.")
    ] = 1024,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out topics that are not there.")
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Join the small files of earlier runs first.")
    ] = False,
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="PATH", help="Folder; PATH/_checkpoints.")
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="An option of the source, name=value; repeatable."),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    command_config: CommandConfigOption = "",
    master: MasterOption = "",
    deploy_mode: DeployModeOption = "",
    packages: PackageOption = None,
    conf: ConfOption = None,
) -> None:
    """Keep topics as tables: a streaming job that writes each record exactly once.

    Each topic becomes a table in PATH. After a stop or a crash the same command continues where
    the tables end.
    """

    def start() -> None:
        request = LandRequest(
            topics=topics,
            to=to,
            format=format,
            partition_by=[name for text in partition_by or [] for name in text.split(",")],
            available_now=available_now,
            trigger_seconds=trigger_seconds,
            decode=decode,
            decode_key=decode_key,
            schema=schema,
            schema_registry=schema_registry,
            bad_records=bad_records,
            max_file_records=max_file_records,
            max_batch_mib=max_batch_mib,
            checkpoint=checkpoint,
            options=dict(parse_settings(option or (), "--option")),
            bootstrap=bootstrap,
            properties=read_client_properties(command_config) if command_config else {},
            skip_missing=skip_missing,
            compacts=compact,
        )
        content = land_options(request)
        # The output of the job is its progress.
        settings = [("spark.log.level", "WARN"), UTC, *parse_settings(conf or ())]
        if format == ICEBERG:
            settings = iceberg_catalog(to) + settings
        elif compact and format == DELTA:
            settings.insert(0, ("spark.databricks.delta.autoCompact.enabled", "true"))
        tables = (format,) if format in TABLE_PACKAGES else ()
        submission = Submission(
            master,
            check_deploy_mode(deploy_mode),
            tables,
            tuple(packages or ()),
            (),
            tuple(settings),
        )
        exit_with(submit(submission, "land.job", None, content, ()))

    reported(start)


def iceberg_catalog(to: str) -> list[tuple[str, str]]:
    """The settings of the catalog `ottla_tables`, whose tables are folders of that path."""
    return [
        ("spark.sql.catalog.ottla_tables", "org.apache.iceberg.spark.SparkCatalog"),
        ("spark.sql.catalog.ottla_tables.type", "hadoop"),
        ("spark.sql.catalog.ottla_tables.warehouse", to),
    ]


def check_deploy_mode(given: str) -> str:
    if given not in ("", "client", "cluster"):
        raise usage(f"--deploy-mode {given}: it can be client or cluster")
    return given


def exit_with(code: int) -> None:
    if code:
        raise typer.Exit(code)
