"""The security log: logins, decisions of the authorizer and changes by administrators.

One logger has logins and changes, `ottla.audit`; decisions are in Kafka's own,
`kafka.authorizer.logger`. Each line has fields for programs: `event`... of JSON, and `principal`,
`address`, `listener`, `resource`, `reason`. With `ottla.audit.log.file` both loggers write there.

A client that repeats itself cannot drown the rest: `repeats` bounds the lines, and their number is
written when an interval is over, and at the end. Logins that worked, failed logins, and what
authenticated clients try have bounds of their own, so that thousands of wrong passwords hide
neither the login that worked after them nor what its user is denied. Successful changes are always
written: only who is authorized to make them makes them.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.security.audit.repeats import INTERVAL_SECONDS, Event, RepeatCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.requests.request_context import RequestConnection, RequestContext
    from ottla.broker.runtime.timer import DelayQueue

AUDIT_LOGGER = "ottla.audit"
logger = logging.getLogger(AUDIT_LOGGER)
# Kafka's name, by which people find and filter these lines.
decisions = logging.getLogger("kafka.authorizer.logger")

LOGGERS = (logger, decisions)

# A name or a reason is the client's choice; this much of it is written.
MAX_TEXT = 300


class Login(NamedTuple):
    """A login that worked or failed; `user` is what the client claims to be, if it came so far."""

    user: str
    mechanism: str
    is_renewal: bool


class SecurityLog:
    """Writes the lines. Loop only."""

    def __init__(self, timer: DelayQueue | None, now: Callable[[], float] = monotonic) -> None:
        """`timer` writes the number of suppressed lines after an interval; None leaves that to
        `flush`."""
        self._timer = timer
        self._logins = RepeatCounts(now)
        self._failures = RepeatCounts(now)
        self._attempts = RepeatCounts(now)  # of authenticated clients
        self._is_scheduled = False

    def logged_in(self, connection: RequestConnection, login: Login) -> None:
        event = Event(connection.client_host, login.user, f"logged in with {login.mechanism}")
        suppressed = self._admit(self._logins, event)
        if suppressed is None:
            return
        logger.info(
            "%s %s from %s:%d on listener %s with %s%s",
            "Re-authenticated" if login.is_renewal else "Authenticated",
            _short(login.user),
            connection.client_host,
            connection.client_port,
            connection.listener_name,
            login.mechanism,
            _others(suppressed),
            extra=_fields(
                "re-authentication" if login.is_renewal else "login",
                login.user,
                connection.client_host,
                listener=connection.listener_name,
                mechanism=login.mechanism,
                result="success",
                suppressed=suppressed,
            ),
        )

    def login_failed(self, connection: RequestConnection, login: Login, reason: str) -> None:
        """`reason` is a predicate of the client and holds no secret: "failed to authenticate"."""
        event = Event(connection.client_host, login.user, _short(reason))
        suppressed = self._admit(self._failures, event)
        if suppressed is None:
            return
        logger.warning(
            "%s:%d on listener %s %s%s",
            connection.client_host,
            connection.client_port,
            connection.listener_name,
            _short(reason),
            _others(suppressed),
            extra=_fields(
                "re-authentication" if login.is_renewal else "login",
                login.user,
                connection.client_host,
                listener=connection.listener_name,
                mechanism=login.mechanism,
                result="failure",
                reason=_short(reason),
                suppressed=suppressed,
            ),
        )

    def denied(self, context: RequestContext, operation: str, resource: str) -> None:
        principal, resource = str(context.principal), _short(resource)
        event = Event(context.client_host, principal, f"denied {operation} on {resource}")
        suppressed = self._admit(self._attempts, event)
        if suppressed is not None:
            _decided(logging.INFO, context, "Denied", operation, resource, suppressed)

    def denied_more(self, context: RequestContext, denials: int) -> None:
        """Denials of a request beyond those that are passed to `denied`: they are counted as those
        of an address that has no lines left."""
        self._attempts.add_suppressed(context.client_host, denials)
        self._flush_after_interval()

    def allowed(self, context: RequestContext, operation: str, resource: str) -> None:
        """Only at DEBUG, as in Kafka; the authorizer checks the level first."""
        _decided(logging.DEBUG, context, "Allowed", operation, _short(resource), 0)

    def changed(
        self, context: RequestContext, kind: str, what: str, error: str | None = None
    ) -> None:
        """A change of `kind` ("configuration", "acl", "user", "token", "quota") that an
        administrator requested; `error` is why it failed."""
        principal, what = str(context.principal), _short(what)
        suppressed: int | None = 0
        if error is not None:
            event = Event(context.client_host, principal, f"{kind}: {_short(error)}")
            suppressed = self._admit(self._attempts, event)
            if suppressed is None:
                return
        logger.info(
            "%s from %s:%d on listener %s: %s%s%s",
            principal,
            context.client_host,
            context.client_port,
            context.listener_name,
            what,
            "" if error is None else f" failed: {_short(error)}",
            _others(suppressed or 0),
            extra=_fields(
                f"{kind} change",
                principal,
                context.client_host,
                listener=context.listener_name,
                resource=what,
                request=context.route.entry.name,
                result="success" if error is None else "failure",
                reason=error and _short(error),
                suppressed=suppressed,
            ),
        )

    def flush(self, *, everything: bool = True) -> None:
        """Writes how many lines were suppressed, at their level: of intervals that are over, or of
        all."""
        for counts, what, level in (
            (self._logins, "logins", logging.INFO),
            (self._failures, "failed logins", logging.WARNING),
            (self._attempts, "denials and failed changes", logging.INFO),
        ):
            for event, count in counts.counted(everything=everything):
                address, user, reason = event
                reason = reason or f"more different {what} than are written in a minute"
                logger.log(
                    level,
                    "Suppressed %d more lines of %s from %s: %s",
                    count,
                    _short(user) or "any user",
                    address or "any address",
                    reason,
                    extra=_fields("suppressed", user, address, reason=reason, suppressed=count),
                )

    def _admit(self, counts: RepeatCounts, event: Event) -> int | None:
        if len(event.user) > MAX_TEXT:
            event = event._replace(user=_short(event.user))
        suppressed = counts.admit(event)
        if suppressed is None:
            self._flush_after_interval()
        return suppressed

    def _flush_after_interval(self) -> None:
        if self._timer is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._timer.schedule(int(INTERVAL_SECONDS * 1000), self._flush_later)

    def _flush_later(self) -> None:
        """Until everything that was suppressed is written."""
        self._is_scheduled = False
        self.flush(everything=False)
        counts = (self._logins, self._failures, self._attempts)
        if self._timer is not None and any(each.has_suppressed for each in counts):
            self._is_scheduled = True
            self._timer.schedule(int(INTERVAL_SECONDS * 1000), self._flush_later)


def _decided(
    level: int,
    context: RequestContext,
    decision: str,
    operation: str,
    resource: str,
    suppressed: int,
) -> None:
    """The line is Kafka's own."""
    principal = str(context.principal)
    decisions.log(
        level,
        "Principal = %s is %s Operation = %s from host = %s on resource = %s for request = %s%s",
        principal,
        decision,
        operation,
        context.client_host,
        resource,
        context.route.entry.name,
        _others(suppressed),
        extra=_fields(
            "authorization",
            principal,
            context.client_host,
            listener=context.listener_name,
            operation=operation,
            resource=resource,
            request=context.route.entry.name,
            result=decision.lower(),
            suppressed=suppressed,
        ),
    )


def _others(suppressed: int) -> str:
    return f" ({suppressed} more lines like this were suppressed)" if suppressed else ""


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def _fields(kind: str, principal: str, address: str, **more: Any) -> dict[str, Any]:
    """The fields of a line; those that are empty are left out."""
    fields = {"audit": kind, "principal": _short(principal), "address": address, **more}
    return {name: value for name, value in fields.items() if value}
