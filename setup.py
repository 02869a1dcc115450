"""What pyproject.toml cannot say about a build: where the parts of `ottla` lie, and a clean start.

The parts stand at the top of the tree, so that the repository shows the architecture, and are
installed below `ottla`, so that an installation has two names only. setuptools packs everything
in `build/lib`: a wheel would hold modules of an earlier build that the tree no longer has.
"""

import shutil

from setuptools import find_packages, setup
from setuptools.command.build import build

PARTS = ("broker", "cli", "controller", "protocol", "storage")


class CleanBuild(build):
    """Build into an empty folder."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def packages_in(folder: str, name: str) -> list[str]:
    """Return the packages of a folder that is installed as `name`.

    A folder without `__init__.py` is data, such as the generator's inputs."""
    return [name, *(f"{name}.{each}" for each in find_packages(folder))]


packages = ["ottla", *packages_in("pyspark_ottla", "pyspark_ottla")]
for part in PARTS:
    packages += packages_in(part, f"ottla.{part}")
setup(
    packages=packages,
    package_dir={f"ottla.{part}": part for part in PARTS},
    cmdclass={"build": CleanBuild},
)
