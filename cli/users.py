"""`ottla users`: users that log in by SCRAM, of a cluster or of a stopped broker."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.broker.security.sasl.scram_credentials import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    TYPES,
)
from ottla.cli.app import family
from ottla.cli.output import Cell, Failure, note, print_json, print_rows, say, usage
from ottla.cli.passwords import PasswordFileOption, read_password
from ottla.cli.session import Session, check, connected
from ottla.protocol.client.operations import Controller
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

if TYPE_CHECKING:
    from ottla.cli.offline_users import OfflineUsers

EXAMPLES = """\
  ottla users list
  ottla users add alice                               prompts for the password
  ottla users add alice --password-file alice.password
  ottla users add admin --data-dir data               the broker is stopped
  ottla users add admin --zookeeper zk1:2181          before the brokers start
  ottla users remove alice
"""

app = family("List, add and remove users that log in by SCRAM.", EXAMPLES)

NUMBERS = {name: number for number, name in TYPES.items()}
DEFAULT_MECHANISM = "SCRAM-SHA-512"

NameArgument = Annotated[str, typer.Argument(help="User.", show_default=False)]
DataDirOption = Annotated[
    str,
    typer.Option(
        "--data-dir",
        help="First directory of log.dirs of a stopped broker with its own znode tree; "
        "no broker is needed then.",
    ),
]
ZooKeeperOption = Annotated[
    str,
    typer.Option("--zookeeper", help="zookeeper.connect of the brokers; none has to run then."),
]
ServerFileOption = Annotated[
    str,
    typer.Option(
        "--config",
        help="Properties file of a broker, which names the znode tree and the login to ZooKeeper.",
    ),
]
COLUMNS = ("user", "mechanism", "iterations")


@app.command("list")
@connected
def list_users(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="Only this user.")] = None,
    data_dir: DataDirOption = "",
    zookeeper: ZooKeeperOption = "",
    config: ServerFileOption = "",
) -> None:
    """List users with their mechanisms. Passwords are not stored and cannot be shown."""
    rows: list[dict[str, Cell]]
    stored = _offline(data_dir, zookeeper, config)
    if stored is not None:
        rows = [each for each in stored.credentials() if name in (None, each["user"])]
    else:
        rows = _described(session, name)
    if session.json:
        print_json(rows)
    else:
        print_rows(rows, COLUMNS, empty="No SCRAM credentials.")


def _offline(data_dir: str, zookeeper: str, config: str) -> OfflineUsers | None:
    """The users in the znode tree itself, None to ask a broker."""
    if not (data_dir or zookeeper or config):
        return None
    from ottla.cli.offline_tree import Place
    from ottla.cli.offline_users import OfflineUsers

    return OfflineUsers(Place(data_dir, zookeeper, config))


def _described(session: Session, name: str | None) -> list[dict[str, Cell]]:
    users = None if name is None else [UserName(name)]
    response = session.call(
        DescribeUserScramCredentialsResponse, DescribeUserScramCredentialsRequest(users)
    )
    check(response.error_code, "users", response.error_message)
    rows: list[dict[str, Cell]] = []
    for result in response.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:  # the user has no credential
            continue
        check(result.error_code, f"user {result.user}", result.error_message)
        rows.extend(
            {
                "user": result.user,
                "mechanism": TYPES.get(each.mechanism, str(each.mechanism)),
                "iterations": each.iterations,
            }
            for each in result.credential_infos
        )
    return rows


@app.command()
@connected
def add(
    session: Session,
    name: NameArgument,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            "--mechanism", help=f"{' or '.join(HASHES)}; repeatable; {DEFAULT_MECHANISM} if none."
        ),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(
            "--iterations", help="Rounds of the hash.", min=MIN_ITERATIONS, max=MAX_ITERATIONS
        ),
    ] = MIN_ITERATIONS,
    password_file: PasswordFileOption = "",
    data_dir: DataDirOption = "",
    zookeeper: ZooKeeperOption = "",
    config: ServerFileOption = "",
) -> None:
    """Add a user, or change the password of one. The broker never gets the password."""
    mechanisms = [_mechanism(each) for each in mechanism or [DEFAULT_MECHANISM]]
    if not name:
        raise usage("the name is empty.")
    stored = _offline(data_dir, zookeeper, config)
    password = read_password(password_file, name)
    if stored is not None:
        stored.add(name, password, mechanisms, iterations)
        if zookeeper and not config:
            note(
                "Every client of this ZooKeeper may read and change the new znode. Brokers with "
                "zookeeper.set.acl protect theirs: use --config server.properties then."
            )
    else:
        upsertions = [_upsertion(name, each, password, iterations) for each in mechanisms]
        _alter(session, name, AlterUserScramCredentialsRequest([], upsertions))
    if session.json:
        print_json({"user": name, "mechanisms": mechanisms})
    else:
        say(f"User {name} can log in with {', '.join(mechanisms)}.")


@app.command()
@connected
def remove(
    session: Session,
    name: NameArgument,
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", help="Only this one; repeatable; all of them if none."),
    ] = None,
    data_dir: DataDirOption = "",
    zookeeper: ZooKeeperOption = "",
    config: ServerFileOption = "",
) -> None:
    """Remove a user. Connections that it has stay open (connections.max.reauth.ms ends them)."""
    wanted = [_mechanism(each) for each in mechanism or ()]
    stored = _offline(data_dir, zookeeper, config)
    if stored is not None:
        removed = stored.remove(name, wanted)
    else:
        present = [str(each["mechanism"]) for each in _described(session, name)]
        removed = [each for each in wanted or present if each in present]
        if removed:
            deletions = [ScramCredentialDeletion(name, NUMBERS[each]) for each in removed]
            _alter(session, name, AlterUserScramCredentialsRequest(deletions, []))
    if not removed:
        mechanisms = ", ".join(wanted)
        raise Failure(f"user {name} has no credential{f' for {mechanisms}' if wanted else ''}.")
    if session.json:
        print_json({"user": name, "removed": removed})
    else:
        say(f"User {name} cannot log in with {', '.join(removed)} any more.")


def _alter(session: Session, name: str, request: AlterUserScramCredentialsRequest) -> None:
    response = session.call(AlterUserScramCredentialsResponse, request, Controller())
    for result in response.results:
        if result.error_code != ErrorCode.NONE:
            check(result.error_code, f"user {name}", result.error_message)


def _mechanism(text: str) -> str:
    name = text.upper()
    if name not in HASHES:
        raise usage(f"--mechanism {text} is not one of {', '.join(HASHES)}.")
    return name


def _upsertion(
    name: str, mechanism: str, password: str, iterations: int
) -> ScramCredentialUpsertion:
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return ScramCredentialUpsertion(name, NUMBERS[mechanism], iterations, salt, salted)
