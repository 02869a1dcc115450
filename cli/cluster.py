"""`ottla cluster`: brokers and controller; a cluster on this machine for trials."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.app import family
from ottla.cli.cluster_checks import broker_row, partition_counts, reassignments
from ottla.cli.doctor import doctor
from ottla.cli.output import Cell, print_fields, print_json, print_rows, say
from ottla.cli.session import Session, check, connected, reported
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

EXAMPLES = """\
  ottla cluster info
  ottla cluster start --brokers 3
  ottla cluster start --remote-console
  ottla cluster restart 2
  ottla cluster doctor
"""

app = family("Show brokers and controller; start a local cluster.", EXAMPLES)
# The same as `ottla doctor`: users search for it in both places.
app.command()(doctor)


@app.command()
@connected
def info(session: Session) -> None:
    """Show brokers, controller and the number of topics and partitions."""
    response = session.call(DescribeClusterResponse, DescribeClusterRequest())
    check(response.error_code, "the cluster", response.error_message)
    metadata = session.client.metadata(None)
    topics = metadata.topics
    partitions = [item for topic in topics for item in topic.partitions]
    brokers: list[dict[str, Cell]] = [
        broker_row(row, row.broker_id, response.controller_id, partitions)
        for row in sorted(response.brokers, key=lambda each: each.broker_id)
    ]
    fields: dict[str, Cell] = {
        "cluster_id": response.cluster_id,
        "controller": response.controller_id,
        "brokers": len(brokers),
        **partition_counts(topics, reassignments(session, metadata)),
    }
    if session.json:
        print_json({**fields, "brokers": brokers})
        return
    print_fields(fields)
    say("")
    print_rows(brokers, list(brokers[0]) if brokers else [])


@app.command()
def start(
    brokers: Annotated[
        int, typer.Option("--brokers", "-n", help="Number of brokers.", min=1, max=20)
    ] = 3,
    directory: Annotated[
        str, typer.Option("--directory", "-d", help="Data directory.")
    ] = "ottla-cluster",
    port: Annotated[
        int,
        typer.Option(
            "--port", help="Port of the first broker; the others use the next ports.", min=1
        ),
    ] = 9092,
    http_port: Annotated[
        int,
        typer.Option(
            "--http-port",
            help="HTTP port (console, metrics, health) of the first broker; 0: 1000 above --port.",
            min=0,
        ),
    ] = 0,
    remote_console: Annotated[
        bool,
        typer.Option(
            "--remote-console",
            help="Open the consoles to other machines and phones, with a token in the address.",
        ),
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option("--override", help="Setting key=value of every broker; repeatable."),
    ] = None,
    java_zookeeper: Annotated[
        bool,
        typer.Option("--java-zookeeper", help="Apache ZooKeeper from pyspark's jars; needs Java."),
    ] = False,
) -> None:
    """Start ZooKeeper and brokers on this machine; Ctrl-C stops all of them.

    The data stays in the directory: the same command starts the same cluster again. The ZooKeeper
    is `ottla zookeeper`, which needs no Java and is for development and tests.
    """
    from ottla.cli.cluster_start import run_cluster

    reported(
        lambda: run_cluster(
            brokers,
            directory,
            port,
            override or [],
            http_port=http_port,
            remote_console=remote_console,
            java=java_zookeeper,
        )
    )


@app.command()
def restart(
    broker: Annotated[int, typer.Argument(help="Broker id.", min=0, show_default=False)],
    directory: Annotated[
        str, typer.Option("--directory", "-d", help="Data directory of the cluster.")
    ] = "ottla-cluster",
) -> None:
    """Restart a broker of `ottla cluster start`, also one that has ended."""
    from ottla.cli.cluster_start import request_restart

    reported(lambda: request_restart(directory, broker))
    say(f"Broker {broker} is restarted.")
