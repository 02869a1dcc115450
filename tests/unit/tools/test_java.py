"""The Java finder: every route with stand-in executables, so that nothing is installed."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.scripts import load_script

TOOL = Path(__file__).resolve().parents[3] / "tools" / "java.py"


java = load_script("tools/java.py")


def write_script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake_java(home: Path, version: str, *, vector: bool) -> Path:
    """A `java` with output for the two calls of the finder; it echoes any other call."""
    modules = "java.base" + (f"\\n{java.VECTOR_MODULE}@{version}" if vector else "")
    return write_script(
        home / "bin" / "java",
        f"""case "$1" in
-XshowSettings:properties)
  echo "    java.home = {home}"
  echo "    java.specification.version = {version}" ;;
--list-modules) printf '{modules}\\n' ;;
*) for word do echo "<$word>"; done ;;
esac""",
    )


def present(tmp_path: Path, environment: dict[str, str]) -> Path | None:
    found = java.present(environment, tmp_path / "cache", str(tmp_path / "jvm"))
    assert found is None or isinstance(found, Path)
    return found


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("    java.specification.version = 17\n", 17),
        ("    java.specification.version = 1.8\n", 8),
        ("    java.specification.version = 25\n", 25),
        ("nothing of the kind", None),
    ],
)
def test_major_version_is_read(text: str, major: int | None) -> None:
    assert java.parse_major(text) == major


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "chosen", "21", vector=True)
    fake_java(tmp_path / "other", "17", vector=True)
    environment = {
        "JAVA_HOME": str(tmp_path / "chosen"),
        "PATH": str(tmp_path / "other" / "bin"),
    }
    assert present(tmp_path, environment) == tmp_path / "chosen"


def test_an_old_java_home_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_java(tmp_path / "old", "1.8", vector=False)
    fake_java(tmp_path / "new", "17", vector=True)
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert present(tmp_path, environment) == tmp_path / "new"
    assert "is Java 8; 17 or newer is needed" in capsys.readouterr().err


def test_a_broken_java_is_skipped(tmp_path: Path) -> None:
    write_script(tmp_path / "broken" / "bin" / "java", "exit 1")
    fake_java(tmp_path / "jvm" / "java-17", "17", vector=True)
    environment = {"PATH": str(tmp_path / "broken" / "bin")}
    assert present(tmp_path, environment) == tmp_path / "jvm" / "java-17"


def test_a_full_java_is_preferred_to_one_without_the_module(tmp_path: Path) -> None:
    fake_java(tmp_path / "lean", "25", vector=False)
    fake_java(tmp_path / "jvm" / "full", "17", vector=True)
    environment = {"JAVA_HOME": str(tmp_path / "lean")}
    assert present(tmp_path, environment) == tmp_path / "jvm" / "full"


def test_nothing_there(tmp_path: Path) -> None:
    assert present(tmp_path, {"PATH": str(tmp_path)}) is None


def test_the_shim_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    fake_java(tmp_path / "it's lean", "21", vector=False)
    home = present(tmp_path, {"JAVA_HOME": str(tmp_path / "it's lean")})
    assert home == tmp_path / "cache" / "home"
    done = subprocess.run(
        [home / "bin" / "java", "a b", f"--add-modules={java.VECTOR_MODULE}", "-cp", "", "$x"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.splitlines() == ["<a b>", "<-cp>", "<>", "<$x>"]


def test_a_runtime_fetched_earlier_is_found_again(tmp_path: Path) -> None:
    fetched = java.wheel_executable(tmp_path / "cache").parent.parent
    fake_java(fetched, "25", vector=False)
    assert present(tmp_path, {"PATH": str(tmp_path)}) == tmp_path / "cache" / "home"


def test_apt_is_left_alone_without_privilege(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("apt-get", "apt-cache"):
        write_script(tmp_path / "bin" / name, f"touch {tmp_path}/was-called")
    write_script(tmp_path / "bin" / "sudo", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert java.apt({"PATH": str(tmp_path / "bin")}, tmp_path / "cache") is None
    assert not (tmp_path / "was-called").exists()
    assert "needs root or a sudo that asks no password" in capsys.readouterr().err


def test_apt_installs_the_first_package_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Debian 13, which has no Java 17; and through a sudo without a password."""
    log = tmp_path / "log"
    write_script(tmp_path / "bin" / "sudo", 'shift; [ "$1" = true ] || exec "$@"')
    write_script(tmp_path / "bin" / "apt-cache", '[ "$3" != openjdk-17-jre-headless ]')
    write_script(tmp_path / "bin" / "apt-get", f'echo "$@" >> {log}')
    made = tmp_path / "made"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(java, "present", lambda environment, cache: made)
    assert java.apt({"PATH": f"{tmp_path}/bin"}, tmp_path / "cache") == made
    update, install = log.read_text(encoding="utf-8").splitlines()
    assert update.split()[-1] == "update"
    assert install.split()[-2:] == ["install", "openjdk-21-jre-headless"]


def test_wheel_route_makes_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], timeout_seconds: float) -> tuple[int, str]:
        if "pip" not in command:
            return run(command, timeout_seconds)
        fake_java(java.wheel_executable(tmp_path).parent.parent, "25", vector=False)
        return 0, ""

    run: Callable[[list[str], float], tuple[int, str]] = java.run
    monkeypatch.setattr(java, "run", pip)
    assert java.wheel({}, tmp_path) == tmp_path / "home"


def test_no_route_is_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "present", lambda environment, cache: None)
    assert java.main(["--routes", "present", "--cache", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "no Java 17 or newer was found" in captured.err


def test_an_unknown_route_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        java.main(["--routes", "present,brew"])
    assert raised.value.code == 2
    assert "unknown route 'brew'" in capsys.readouterr().err


def test_it_runs_as_a_script(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "17", vector=True)
    done = subprocess.run(
        [sys.executable, "-S", str(TOOL), "--routes", "present", "--cache", str(tmp_path / "c")],
        env={"JAVA_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{tmp_path / 'home'}\n"
    assert not (tmp_path / "c").exists()
