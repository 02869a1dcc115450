"""The one error that a wrong setting raises."""


class ConfigError(Exception):
    """A setting is unknown, ill-typed or contradicts another one.

    The message is one sentence for the person who wrote the setting: where it stands, what is
    wrong, and what to write instead.
    """
