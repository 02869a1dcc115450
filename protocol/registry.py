"""Every API we can encode and decode: its key, name, versions and classes.

These are the versions of the definitions. Which of them a broker offers is decided by its table of
handlers. Classes are imported at their first use: start-up pays for the APIs it uses.
"""

from __future__ import annotations

from importlib import import_module

from ottla.protocol.message import Message
from ottla.protocol.messages.table import APIS, ApiKey

__all__ = ["API", "API_BY_NAME", "Api", "ApiKey", "api_name"]


class Api:
    """One API. `first_flexible_version` is above `max_version` where no version is flexible."""

    __slots__ = (
        "_module",
        "_request",
        "_response",
        "first_flexible_version",
        "key",
        "max_version",
        "min_version",
        "name",
    )

    def __init__(
        self,
        key: int,
        name: str,
        module: str,
        min_version: int,
        max_version: int,
        first_flexible_version: int,
    ) -> None:
        self.key = key
        self.name = name
        self.min_version = min_version
        self.max_version = max_version
        self.first_flexible_version = first_flexible_version
        self._module = module
        self._request: type[Message] | None = None
        self._response: type[Message] | None = None

    def __repr__(self) -> str:
        return f"Api({self.key}, {self.name}, versions {self.min_version}-{self.max_version})"

    @property
    def request(self) -> type[Message]:
        """The class of the request."""
        if self._request is None:
            self._request = self._load("Request")
        return self._request

    @property
    def response(self) -> type[Message]:
        """The class of the response."""
        if self._response is None:
            self._response = self._load("Response")
        return self._response

    def request_header_version(self, version: int) -> int:
        """The request header that goes with `version`, also for a version above `max_version`:
        an ApiVersions request of a newer client gets the versions that we have."""
        if self.key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
            return 0  # older than client ids
        return 2 if version >= self.first_flexible_version else 1

    def response_header_version(self, version: int) -> int:
        """The response header that goes with `version`. That of ApiVersions has no tagged fields:
        its reader does not know yet the version of the response."""
        if self.key == ApiKey.API_VERSIONS:
            return 0
        return 1 if version >= self.first_flexible_version else 0

    def _load(self, suffix: str) -> type[Message]:
        module = import_module(f"ottla.protocol.messages.{self._module}")
        found = getattr(module, self.name + suffix)
        assert isinstance(found, type)
        assert issubclass(found, Message)
        return found


#: All APIs by key.
API: dict[int, Api] = {row[0]: Api(*row) for row in APIS}

#: All APIs by name, such as "Produce".
API_BY_NAME: dict[str, Api] = {api.name: api for api in API.values()}


def api_name(key: int) -> str:
    """The name of an API for people, also of one that we do not have."""
    api = API.get(key)
    return api.name if api is not None else f"API {key}"
