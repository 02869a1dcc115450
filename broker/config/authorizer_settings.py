"""The values of the authorization settings. Imported by every broker: keep it light."""

from ottla.broker.config.errors import ConfigError

ACL_AUTHORIZERS = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
"""Values of `authorizer.class.name` that mean this one."""


def parse_super_users(text: str) -> frozenset[str]:
    """The setting `super.users`: "User:alice;User:CN=broker,O=us". Raises ValueError."""
    users = [part.strip() for part in text.split(";") if part.strip()]
    for user in users:
        if ":" not in user:
            raise ValueError(f"super.users: {user!r} is no principal, write it as User:{user}")
    return frozenset(users)


def check_authorizer(class_name: str, super_users: str) -> None:
    """ConfigError for an authorizer that this broker does not have, and for wrong principals."""
    if class_name not in ("", *ACL_AUTHORIZERS):
        raise ConfigError(
            f"authorizer.class.name is {class_name}, which this broker cannot load; it has "
            f"Kafka's {ACL_AUTHORIZERS[0]} built in."
        )
    try:
        parse_super_users(super_users)
    except ValueError as error:
        raise ConfigError(str(error)) from None
