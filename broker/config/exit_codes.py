"""The exit codes of `ottla start`. docs/operations.md has the table; a test compares."""

from __future__ import annotations

from ottla.broker.config.errors import ConfigError, each_error

STOPPED = 0
FAILED = 1
WRONG_SETTINGS = 2

#: By the name of the error's class, so that none of them need be imported to report it.
EXIT_CODES = {
    "PortInUse": 10,
    "DirectoryInUse": 11,
    "DirectoryUnwritable": 12,
    "DirectoryFull": 13,
    "WrongOwner": 14,
    "InconsistentClusterId": 15,
    "ZooKeeperUnreachable": 16,
    "UnknownSetting": 17,
    "AdvertisedAddressError": 18,
    "CertificateExpired": 19,
    "BrokerIdTaken": 20,
    "AdvertisedAddressTaken": 21,
    "MigratedToKraft": 22,
    "ConfigError": WRONG_SETTINGS,
}


def exit_code(error: Exception) -> int:
    """The code for an error that stopped a start; several wrong settings of different kinds are
    WRONG_SETTINGS."""
    errors = each_error(error) if isinstance(error, ConfigError) else (error,)
    codes = {_code_of(type(each)) for each in errors}
    return codes.pop() if len(codes) == 1 else WRONG_SETTINGS


def _code_of(kind: type[BaseException]) -> int:
    return next(
        (EXIT_CODES[each.__name__] for each in kind.__mro__ if each.__name__ in EXIT_CODES), FAILED
    )
