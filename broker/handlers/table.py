"""The table of the APIs that this broker serves: key, versions, handler.

It is collected from the routes of the handlers' modules (`ottla.broker.requests.api_routes`). The
ApiVersions response is built from it, and the network layer decodes only what is in it. Every
listed version of an API works.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.broker.handlers.metadata.api_versions import ApiVersionsHandler, NotOffered
from ottla.broker.requests.api_routes import entries_of

if TYPE_CHECKING:
    from ottla.broker.cluster.features import FeatureCache
    from ottla.broker.requests.request_context import HandlerEntry


def build_table(
    handlers: Iterable[object],
    features: FeatureCache,
    not_offered: NotOffered = dict,
) -> list[HandlerEntry]:
    """One entry for each API of the handlers, and ApiVersions, whose response lists them all but
    those that the cluster does not offer.

    A handler is an object or a module whose functions handle requests.
    """
    entries = [entry for handler in handlers for entry in entries_of(handler)]
    # ApiVersions must list itself, so add it to the same list.
    entries += entries_of(ApiVersionsHandler(entries, features, not_offered))
    return entries
