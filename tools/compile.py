"""Compile the hot modules of `ottla.protocol.records` with mypyc: `python tools/compile.py`.

Optional: everything works without it. Compiled, records decode and encode some three to eight
times as fast (`make bench-protocol` says on your machine). Needs a C compiler and the development
dependencies. The results lie beside the sources and are used from the next start on; after a
change to a source, compile again or remove them.

    python tools/compile.py            compile in place
    python tools/compile.py --remove   back to plain Python
    python tools/compile.py --check    compile a copy and run the tests of records on it
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("ottla") / "protocol" / "records"
MODULES = ("varint", "section", "check", "reader", "builder", "legacy")
TESTS = ("tests/unit/protocol/records", "tests/golden/records", "tests/fuzz/test_record_batches.py")
NEEDED_BY_TESTS = ("protocol", "tests", "pyproject.toml")
PACKAGE_FILES = ("__init__.py", "py.typed")


def compiled_files(root: Path) -> list[Path]:
    """What earlier runs have left in the tree."""
    suffixes = ("*.so", "*.pyd")
    beside = [path for suffix in suffixes for path in (root / PACKAGE).glob(suffix)]
    shared = [path for suffix in suffixes for path in root.glob(f"*__mypyc*{suffix[1:]}")]
    return beside + shared


def compile_in(root: Path) -> None:
    """Run mypyc in `root`; the tree must hold no compiled files, or they would be imported."""
    sources = [str(PACKAGE / f"{name}.py") for name in MODULES]
    command = [sys.executable, "-m", "mypyc", "--strict", *sources]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    shutil.rmtree(root / "build", ignore_errors=True)
    if done.returncode:
        last_lines = (done.stdout + done.stderr).strip().splitlines()[-15:]
        raise SystemExit("mypyc failed (is there a C compiler?):\n" + "\n".join(last_lines))


def copy_of_the_tree(target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    for name in NEEDED_BY_TESTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copy(source, target / name)
    (target / "ottla").mkdir()
    for name in PACKAGE_FILES:
        shutil.copy(ROOT / "ottla" / name, target / "ottla")
    (target / "ottla" / "protocol").symlink_to("../protocol")


def compile_in_place() -> None:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        copy_of_the_tree(copy)
        compile_in(copy)
        remove()
        for path in compiled_files(copy):
            shutil.copy(path, ROOT / path.relative_to(copy))
    names = ", ".join(f"{PACKAGE.as_posix()}/{name}.py" for name in MODULES)
    print(f"compiled {names}")


def remove() -> None:
    for path in compiled_files(ROOT):
        path.unlink()


def check() -> None:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        copy_of_the_tree(copy)
        compile_in(copy)
        probe = "from ottla.protocol.records import section; assert section.IS_COMPILED"
        environment = {**os.environ, "PYTHONPATH": directory}
        subprocess.run([sys.executable, "-c", probe], cwd=copy, env=environment, check=True)
        command = [sys.executable, "-m", "pytest", "-q", *TESTS]
        done = subprocess.run(command, cwd=copy, env=environment)
        raise SystemExit(done.returncode)


def main() -> None:
    actions = {(): compile_in_place, ("--remove",): remove, ("--check",): check}
    action = actions.get(tuple(sys.argv[1:]))
    if action is None:
        raise SystemExit(__doc__)
    action()


if __name__ == "__main__":
    main()
