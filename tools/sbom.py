"""Bill of materials (CycloneDX) and licence report of the wheel or the image: `make sbom`.

    python -m tools.sbom wheel                        the wheel with its dependencies
    python -m tools.sbom image IMAGE [--engine NAME]  all Python and Debian packages of an image

Both write `dist/ottla-KIND.cdx.json` and `dist/ottla-KIND-licenses.md`. A package that names no
licence is listed as such, and the exit code is 1: a release needs a person to look at it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NO_LICENCE = "not named"
SECONDS = 600

# Runs in the environment that is described; it has nothing but the standard library there.
_READER = r"""
import glob, json, os, re
from importlib.metadata import distributions

def licence(metadata):
    expression = metadata.get("License-Expression")
    classified = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier", ())
        if line.startswith("License :: ") and not line.endswith(":: OSI Approved")
    ]
    short = (metadata.get("License") or "").strip().split("\n")[0]
    return expression or " AND ".join(classified) or short[:100]

rows = [
    {"type": "pypi", "name": each.metadata["Name"], "version": each.version,
     "license": licence(each.metadata)}
    for each in distributions()
]

def debian_licence(name):
    path = f"/usr/share/doc/{name}/copyright"
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            text = source.read(1 << 20)
    except OSError:
        return ""
    found = dict.fromkeys(re.findall(r"^License: (\S.*)$", text, re.MULTILINE))
    for word in ("GPL-3", "GPL-2", "LGPL-2.1", "LGPL-3", "Artistic", "Apache-2.0", "BSD"):
        if not found and f"/usr/share/common-licenses/{word}" in text:
            return word
    return ", ".join(found) or ("see " + path)

packages = "/var/lib/dpkg/status"
if os.environ.get("OTTLA_SBOM_SYSTEM") and os.path.exists(packages):
    with open(packages, encoding="utf-8") as source:
        for block in source.read().split("\n\n"):
            fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", block, re.MULTILINE))
            if fields.get("Status", "").endswith(" installed"):
                rows.append({"type": "deb", "name": fields["Package"],
                             "version": fields["Version"],
                             "license": debian_licence(fields["Package"])})
print(json.dumps(rows))
"""

Row = dict[str, str]


def packages_of(command: Sequence[str]) -> list[Row]:
    """The packages of the environment in which `command` is a Python, sorted."""
    done = subprocess.run(
        [*command, "-c", _READER], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    unique = {(row["type"], row["name"].lower()): row for row in json.loads(done.stdout)}
    return [unique[key] for key in sorted(unique)]


def wheel_packages() -> list[Row]:
    """The packages that `pip install` of the wheel brings, in an environment of its own."""
    with tempfile.TemporaryDirectory(prefix="ottla-sbom-") as folder:
        environment = Path(folder) / "environment"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=SECONDS)
        python = environment / "bin" / "python"
        install = [str(python), "-m", "pip", "install", "--quiet", str(ROOT)]
        subprocess.run(install, check=True, timeout=SECONDS)
        found = packages_of([str(python)])
    return [row for row in found if row["name"] not in ("pip", "setuptools")]


def image_packages(engine: str, image: str) -> list[Row]:
    """The packages of Python and of Debian in an image."""
    return packages_of(
        [engine, "run", "--rm", "--env", "OTTLA_SBOM_SYSTEM=1", "--entrypoint", "python", image]
    )


def bill(rows: list[Row]) -> str:
    """A CycloneDX 1.6 document of the packages; Ottla itself is what they are parts of."""
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    def component(row: Row, kind: Any) -> Component:
        namespace = "debian" if row["type"] == "deb" else None
        url = PackageURL(row["type"], namespace, row["name"].lower(), row["version"])
        licences = [DisjunctiveLicense(name=row["license"])] if row["license"] else []
        return Component(
            name=row["name"],
            version=row["version"],
            type=kind,
            purl=url,
            bom_ref=str(url),
            licenses=licences,
        )

    document = Bom()
    [own] = [row for row in rows if row["name"] == "ottla"]
    root = component(own, ComponentType.APPLICATION)
    document.metadata.component = root
    parts = [component(row, ComponentType.LIBRARY) for row in rows if row is not own]
    for part in parts:
        document.components.add(part)
    document.register_dependency(root, parts)
    return str(JsonV1Dot6(document).output_as_string(indent=2))


def report(kind: str, rows: list[Row]) -> str:
    """A table of the packages with their licences."""
    lines = [f"# Licences of the {kind}", "", "| package | version | licence |", "|---|---|---|"]
    for row in rows:
        licence = (row["license"] or NO_LICENCE).replace("|", "\\|")
        lines.append(f"| {row['name']} | {row['version']} | {licence} |")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("wheel", "image"))
    parser.add_argument("image", nargs="?", default="ottla")
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args(arguments)
    rows = (
        wheel_packages()
        if options.kind == "wheel"
        else image_packages(options.engine, options.image)
    )
    options.output.mkdir(parents=True, exist_ok=True)
    name = f"ottla-{options.kind}"
    (options.output / f"{name}.cdx.json").write_text(bill(rows), encoding="utf-8")
    text = report(options.kind, rows)
    (options.output / f"{name}-licenses.md").write_text(text, encoding="utf-8")
    missing = [row["name"] for row in rows if not row["license"]]
    print(f"{len(rows)} packages in {options.output / name}.cdx.json")
    for each in missing:
        print(f"{each} names no licence", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
