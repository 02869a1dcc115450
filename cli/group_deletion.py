"""The deletion of groups, for `ottla groups delete` and `ottla share-groups delete`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ottla.cli.output import Failure, print_json, say
from ottla.cli.session import Session, check, explain
from ottla.protocol.client.operations import CoordinatorOf
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")]


def delete_groups(
    session: Session,
    groups: list[str],
    is_confirmed: bool,
    *,
    noun: str,
    contents: str,
    check_group: Callable[[str], object] = lambda group: None,
) -> None:
    """Deletes each group after a prompt that names what is lost; then raises Failure if one could
    not be deleted, or if `check_group` raised it."""
    question = f"Delete {', '.join(groups)} with {contents}?"
    if not is_confirmed and not typer.confirm(question, err=True):
        raise Failure("nothing was deleted.")
    deleted, problems = [], []
    for group in groups:
        request = DeleteGroupsRequest(groups_names=[group])
        try:
            check_group(group)
            result = session.call(DeleteGroupsResponse, request, CoordinatorOf(group)).results[0]
            check(result.error_code, f"group {group}")
            deleted.append(group)
        except Failure as failure:
            problems.append(str(failure))
        except KafkaError as error:  # there is no coordinator
            problems.append(f"group {group}: {explain(error.code, error.message)}")
    if session.json:
        print_json({"deleted": deleted})
    else:
        for group in deleted:
            say(f"{noun} {group} deleted.")
    if problems:
        raise Failure(" ".join(problems))
