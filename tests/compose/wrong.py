"""How the checks of a container engine fail."""


class Wrong(Exception):
    """What did not hold, in a sentence."""
