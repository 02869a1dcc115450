"""What pyproject.toml cannot say about a build: it starts from nothing, and from a whole tree.

setuptools packs everything that lies in `build/lib`: a wheel would hold modules of an earlier build
that the tree no longer has. Where the links in `ottla/` are plain files, as in a checkout without
symbolic links, setuptools would build a wheel without the broker and report no error.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build

PARTS = ("broker", "cli", "controller", "protocol", "storage")


class CleanBuild(build):
    """Builds into an empty folder."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def check_links() -> None:
    """Raises SystemExit where a part of `ottla/` is not a folder."""
    for part in PARTS:
        if not (Path(__file__).parent / "ottla" / part).is_dir():
            raise SystemExit(
                f"ottla/{part} is not a folder: this checkout has no symbolic links. "
                "Run `git config core.symlinks true && git checkout -- ottla`."
            )


check_links()
setup(cmdclass={"build": CleanBuild})
