"""Who may import whom. Think twice before editing a row: each line keeps a layer honest.

The table is the design's: protocol <- storage <- broker, protocol <- controller <- broker; the
Spark connector and the command line stand on the protocol. Of the standard library, only what
would break a layer's promise is forbidden: a sans-IO package has no sockets, storage no clock.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("protocol", "storage", "controller", "broker", "cli", "pyspark_ottla")

ALLOWED_OWN = {
    "protocol": ("protocol",),
    "storage": ("storage", "protocol.records"),
    "controller": ("controller", "protocol"),
    "broker": ("broker", "protocol", "storage", "controller"),
    "cli": ("cli", "protocol", "storage", "broker", "controller"),
    "pyspark_ottla": ("pyspark_ottla", "protocol"),
}

# The two shells of the client do the input and output that the rest of protocol never does.
SANS_IO_EXEMPT = ("protocol/client/blocking", "protocol/client/aio", "protocol/generate.py")
FORBIDDEN_STANDARD = {
    "protocol": {"asyncio", "socket", "ssl", "selectors", "threading", "pathlib", "subprocess"},
    "storage": {"asyncio", "socket", "ssl", "time", "datetime", "sched", "concurrent"},
    "controller": {"socket", "subprocess"},
}


def modules() -> list[Path]:
    return sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def imported_names(path: Path) -> list[tuple[int, str]]:
    names: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names.append((node.lineno, node.module or ""))
            assert all(alias.name != "*" for alias in node.names), f"{path}: no star imports"
    return names


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("package", OURS)
def test_package_imports_only_what_its_layer_may(package: str) -> None:
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        for line, name in imported_names(path):
            if name.split(".")[0] in OURS and not is_within(name, ALLOWED_OWN[package]):
                wrong.append(f"{relative}:{line} imports {name}")
            forbidden = FORBIDDEN_STANDARD.get(package, set())
            if name.split(".")[0] in forbidden and not relative.startswith(SANS_IO_EXEMPT):
                wrong.append(f"{relative}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_broker_layers() -> None:
    """The network knows no handler; only the table knows them all; nobody imports the server."""
    wrong = []
    for path in sorted((ROOT / "broker").rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        for line, name in imported_names(path):
            if relative.startswith("broker/net/") and is_within(
                name, ("broker.handlers", "broker.replication", "broker.groups", "controller")
            ):
                wrong.append(f"{relative}:{line} imports {name}")
            if name == "broker.server" and relative not in (
                "broker/__main__.py",
                "broker/embedded.py",
            ):
                wrong.append(f"{relative}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_packages_have_no_cycles_through_type_checking_either() -> None:
    """A quick look that the rule table itself is acyclic: no package may reach itself."""
    edges = {
        package: {allowed.split(".")[0] for allowed in allowed_names} - {package}
        for package, allowed_names in ALLOWED_OWN.items()
    }

    def reaches(start: str, goal: str) -> bool:
        return any(step == goal or reaches(step, goal) for step in edges[start])

    assert not [package for package in OURS if reaches(package, package)]
