"""Who may import whom. Think twice before editing a row: each line keeps a layer honest.

The table is the design's: protocol <- storage <- broker, protocol <- controller <- broker; the
Spark connector and the command line stand on the protocol, the connector for tiered segments also
on remote storage. Of the standard library, only what would break a layer's promise is forbidden: a
sans-IO package has no sockets, storage no clock.
"""

from __future__ import annotations

import pytest

from tests.tidy.source_tree import PACKAGES, ROOT, circles, import_graph, imported_names

ALLOWED_OWN = {
    "protocol": ("ottla.protocol",),
    "storage": (
        "ottla.storage",
        "ottla.protocol.records",
        "ottla.protocol.steps",
        # The records of `__remote_log_metadata`: `storage/remote/metadata_records.py`.
        "ottla.protocol.codec",
        "ottla.protocol.errors",
        "ottla.protocol.message",
        "ottla.protocol.messages.stored",
        "ottla.protocol.partitioner",
        "ottla.protocol.primitives",
    ),
    "controller": ("ottla.controller", "ottla.protocol"),
    "broker": ("ottla.broker", "ottla.protocol", "ottla.storage", "ottla.controller"),
    "cli": ("ottla.cli", "ottla.protocol", "ottla.storage", "ottla.broker", "ottla.controller"),
    "pyspark_ottla": (
        "pyspark_ottla",
        "ottla.protocol",
        # Tiered segments straight from their store: `cli.spark_package` has the same modules.
        "ottla.storage.remote",
        "ottla.storage.errors",
        "ottla.storage.producer.producer_snapshot",
    ),
}

# The two shells of the client do the input and output that the rest of protocol never does.
SANS_IO_EXEMPT = (
    "protocol/client/blocking",
    "protocol/client/aio",
    "protocol/generate.py",
    "controller/tree/zookeeper_connection.py",  # the sockets of the one client with threads
    "storage/remote/cloud_object_store.py",  # durations for obstore are timedeltas; no clock
)
FORBIDDEN_STANDARD = {
    "protocol": {"asyncio", "socket", "ssl", "selectors", "threading", "pathlib", "subprocess"},
    "storage": {"asyncio", "socket", "ssl", "time", "datetime", "sched", "concurrent"},
    "controller": {"socket", "subprocess"},
}

# The folders and modules at the top of a package, in the order of imports. At run time a module
# imports from its own folder and from those before it here. A name that is only an annotation comes
# from anywhere in the package, under `if TYPE_CHECKING`: a Protocol would only repeat it.
BROKER_ORDER = (
    "runtime",
    "config",
    "metrics",
    "purgatory",
    "requests",
    "quotas",
    "cluster",
    "coordination",
    "security",
    "net",
    "remote",
    "replication",
    "share",
    "groups",
    "transactions",
    "handlers",
    "observability",
    "server",
    "workers",
    "testing",
    "__main__",
)
CONTROLLER_ORDER = (
    "errors",
    "settings",
    "runtime",
    "model",
    "tree",
    "zookeeper_server",
    "registration",
    "state",
    "requests",
    "events",
    "state_machines",
    "admin",
    "changes",
    "election",
    "lifecycle",
    "controller",
)
# The same for every package that has such an order.
IMPORT_ORDER = {
    "broker": BROKER_ORDER,
    "controller": CONTROLLER_ORDER,
    "storage": (
        "errors",
        "config",
        "files",
        "index",
        "producer",
        "records",
        "log",
        "recovery",
        "cleaner",
        "directories",
        "remote",
        "inspection",
    ),
}


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_its_layer_may(package: str) -> None:
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        for line, name in imported_names(path):
            own = name.startswith(("ottla.", "pyspark_ottla"))
            if own and not is_within(name, (*ALLOWED_OWN[package], "ottla.__version__")):
                wrong.append(f"{relative}:{line} imports {name}")
            forbidden = FORBIDDEN_STANDARD.get(package, set())
            if name.split(".")[0] in forbidden and not relative.startswith(SANS_IO_EXEMPT):
                wrong.append(f"{relative}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", IMPORT_ORDER)
def test_folders_import_from_those_before_them(package: str) -> None:
    order = {part: place for place, part in enumerate(IMPORT_ORDER[package])}
    present = {path.stem for path in (ROOT / package).iterdir()} - {"__init__", "__pycache__"}
    assert present == set(IMPORT_ORDER[package])
    prefix = f"ottla.{package}."

    def part(module: str) -> str:
        return module.split(".")[2]

    graph = import_graph()
    wrong = [
        f"{module} imports {imported}"
        for module in graph
        if module.startswith(prefix)
        for imported in sorted(graph[module])
        if imported.startswith(prefix) and order[part(imported)] > order[part(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_circles_of_modules() -> None:
    """Strongly connected components of the import graph at run time."""
    assert circles(import_graph()) == []


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "e"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}
    frozen = {name: frozenset(targets) for name, targets in graph.items()}
    assert circles(frozen) == [["a", "b", "c"], ["e", "f"]]
