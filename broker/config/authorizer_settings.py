"""The values of the authorization settings. Imported by every broker: keep it light."""

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
