"""The interpreter of the broker under measurement, and how it was built."""

import sys
from pathlib import Path

import pytest

from benchmarks import interpreter, targets
from benchmarks.interpreter import Build, NotUsable, build_of, with_packages

PLAIN = Build("3.14.2", "'--enable-shared'", "-O3", False, False, None, "uvloop 0.22.1")


def test_options_that_decide_on_speed() -> None:
    assert str(PLAIN) == "Python 3.14.2 (no PGO, no LTO), uvloop 0.22.1"
    arguments = "'--enable-optimizations' '--with-lto=full' '--with-tail-call-interp'"
    fast = PLAIN._replace(arguments=arguments, jit=True)
    assert fast.options() == ["PGO", "LTO", "tail calls", "JIT"]
    # The options may be in the flags of the compiler only, or nowhere.
    flags = PLAIN._replace(flags="-fprofile-use -fprofile-correction -flto=auto", jit=False)
    assert flags.options() == ["PGO", "LTO", "JIT off"]
    assert PLAIN._replace(debian=True).options() == ["a package of Debian: PGO, LTO"]
    assert PLAIN._replace(free_threaded=True, debug=True).options()[2:] == [
        "free-threaded",
        "debug",
    ]


def test_an_interpreter_tells_its_build() -> None:
    found = build_of(sys.executable)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert str(found) in interpreter.describe(Path(sys.executable))
    assert "clients:" not in interpreter.describe(Path(sys.executable))


def test_the_interpreter_of_the_environment_has_all_packages() -> None:
    assert with_packages(Path(sys.executable)) == Path(sys.executable)


def test_what_is_no_interpreter_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", Path("/bin/false"), Path("/bin/echo")):
        with pytest.raises(NotUsable, match="does not start"):
            with_packages(path)


def test_the_broker_is_started_with_the_chosen_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets.Ottla, "python", Path("/opt/python3.14"))
    command = targets.OttlaWorkers(tmp_path, {}, 2).command()
    assert command[:4] == ["/opt/python3.14", "-m", "ottla.cli.main", "start"]
    assert "offsets.topic.num.partitions=2\n" in Path(command[-1]).read_text()
