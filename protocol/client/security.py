"""How a client proves who it is: settings only, no files are read and no sockets opened here."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.protocol.client.sasl import NewContext

PLAINTEXT = "PLAINTEXT"
SSL = "SSL"
SASL_PLAINTEXT = "SASL_PLAINTEXT"
SASL_SSL = "SASL_SSL"

_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_BEARER = "OAUTHBEARER"
_KERBEROS = "GSSAPI"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", _BEARER, _KERBEROS)

_FILE_SETTINGS = {
    "ca_file": ("ssl.ca.location", "ssl.truststore.location"),
    "certificate_file": ("ssl.certificate.location", "ssl.keystore.location"),
    "key_file": ("ssl.key.location",),
    "key_password": ("ssl.key.password",),
}


class Security:
    """`protocol` as Kafka's `security.protocol`; files are PEM.

    OAUTHBEARER takes a `token` instead of user name and password: it is called before each
    connection is opened, may block, and raises AuthenticationError. `extensions` go with it.
    GSSAPI takes `new_context`, which makes the security context for a host.

    Raises ValueError for settings that cannot work together.
    """

    __slots__ = (
        "ca_file",
        "certificate_file",
        "check_hostname",
        "extensions",
        "key_file",
        "key_password",
        "mechanism",
        "new_context",
        "password",
        "protocol",
        "token",
        "username",
    )

    def __init__(
        self,
        protocol: str = PLAINTEXT,
        *,
        mechanism: str | None = None,
        username: str | None = None,
        password: str | None = None,
        token: Callable[[], str] | None = None,
        extensions: tuple[tuple[str, str], ...] = (),
        new_context: "NewContext | None" = None,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        key_file: str | None = None,
        key_password: str | None = None,
        check_hostname: bool = True,
    ) -> None:
        protocol = protocol.upper()
        if protocol not in _PROTOCOLS:
            raise ValueError(f"security.protocol={protocol} is not one of {', '.join(_PROTOCOLS)}")
        if protocol.startswith("SASL_"):
            if mechanism not in _MECHANISMS:
                raise ValueError(
                    f"sasl.mechanism={mechanism} is not one of {', '.join(_MECHANISMS)}"
                )
            if mechanism == _BEARER:
                if token is None:
                    raise ValueError(f"sasl.mechanism={_BEARER} needs a provider of tokens")
            elif mechanism == _KERBEROS:
                if new_context is None:
                    raise ValueError(f"sasl.mechanism={_KERBEROS} is not available to this client")
            elif username is None or password is None:
                raise ValueError(f"security.protocol={protocol} needs a user name and a password")
        self.protocol = protocol
        self.mechanism = mechanism
        self.username = username
        self.password = password
        self.token = token
        self.extensions = extensions
        self.new_context = new_context
        self.ca_file = ca_file
        self.certificate_file = certificate_file
        self.key_file = key_file
        self.key_password = key_password
        self.check_hostname = check_hostname

    def become(self, other: "Security") -> None:
        """Take the settings of another one: connections that are opened later use them."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def __repr__(self) -> str:
        return f"Security({self.protocol}, mechanism={self.mechanism}, username={self.username})"

    @property
    def uses_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> "Security":
        """From a client's settings with Kafka's names; others are ignored.

        User and password come from `sasl.jaas.config` as Java's clients have it, or from
        `sasl.username` and `sasl.password` as librdkafka's do.
        """
        username = properties.get("sasl.username")
        password = properties.get("sasl.password")
        jaas = properties.get("sasl.jaas.config")
        if jaas:
            username = _jaas_option(jaas, "username") or username
            password = _jaas_option(jaas, "password") or password
        files = {}
        for argument, names in _FILE_SETTINGS.items():
            files[argument] = next((properties[name] for name in names if name in properties), None)
        return cls(
            properties.get("security.protocol", PLAINTEXT),
            mechanism=properties.get("sasl.mechanism", properties.get("sasl.mechanisms")),
            username=username,
            password=password,
            token=None,  # no property names a provider
            extensions=(),
            new_context=None,
            check_hostname=properties.get("ssl.endpoint.identification.algorithm", "https") != "",
            **files,
        )


def _jaas_option(jaas: str, name: str) -> str | None:
    import re

    found = re.search(rf'\b{name}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;]+))', jaas)
    if found is None:
        return None
    if found.group(1) is not None:
        return re.sub(r"\\(.)", r"\1", found.group(1))
    return found.group(2)
