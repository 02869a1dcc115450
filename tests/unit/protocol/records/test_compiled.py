"""Compiled modules (tools/compile.py), where there are any, are those of their sources."""

from pathlib import Path

from ottla.protocol.records import section

FOLDER = Path(section.__file__).parent


def test_compiled_modules_are_not_older_than_their_sources() -> None:
    stale = []
    for compiled in [*FOLDER.glob("*.so"), *FOLDER.glob("*.pyd")]:
        source = FOLDER / f"{compiled.name.partition('.')[0]}.py"
        if not source.exists() or source.stat().st_mtime > compiled.stat().st_mtime:
            stale.append(compiled.name)
    assert not stale, "run `python tools/compile.py` again, or with --remove"
