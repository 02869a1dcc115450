"""Known vulnerabilities of the packages in the image: `make audit`.

Asks the database OSV for each version in deploy/image/constraints*.txt. Exit code 0: none is known;
1: there are some; 2: the database could not be reached, so nothing is known about the packages that
are named then.

    python -m tools.audit [FILE...] [--database URL]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = sorted((ROOT / "deploy" / "image").glob("constraints*.txt"))
DATABASE = "https://api.osv.dev"
TIMEOUT_SECONDS = 30.0
# Of a response: a few packages have a few hundred bytes each.
MAX_RESPONSE_BYTES = 16 << 20

FOUND, NOT_CHECKED = 1, 2

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


class Package(NamedTuple):
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Unreachable(Exception):
    """The database gave no usable response."""


def packages(text: str) -> list[Package]:
    """What a constraints file pins."""
    return [Package(*found) for found in _PINNED.findall(text)]


def vulnerabilities(found: Sequence[Package], database: str) -> dict[Package, list[str]]:
    """Ids of known vulnerabilities by package; those without any are left out."""
    queries = [
        {"package": {"name": each.name, "ecosystem": "PyPI"}, "version": each.version}
        for each in found
    ]
    results = _post(f"{database}/v1/querybatch", {"queries": queries}).get("results")
    if not isinstance(results, list) or len(results) != len(found):
        raise Unreachable("the response has another number of results")
    return {
        package: [str(each["id"]) for each in result["vulns"]]
        for package, result in zip(found, results, strict=True)
        if result.get("vulns")
    }


def _post(url: str, value: object) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(value).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            found = json.loads(response.read(MAX_RESPONSE_BYTES))
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise Unreachable(str(getattr(error, "reason", error))) from None
    if not isinstance(found, dict):
        raise Unreachable("the response is no JSON object")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=CONSTRAINTS)
    parser.add_argument("--database", default=DATABASE)
    options = parser.parse_args(arguments)
    found = [each for file in options.files for each in packages(file.read_text())]
    names = ", ".join(map(str, found))
    try:
        known = vulnerabilities(found, options.database)
    except Unreachable as error:
        print(f"not checked: {options.database} cannot be reached ({error}).", file=sys.stderr)
        print(f"nothing is known about {len(found)} packages: {names}", file=sys.stderr)
        return NOT_CHECKED
    for package, ids in known.items():
        print(f"{package}: {', '.join(ids)}")
    print(f"{len(found)} packages checked, {len(known)} with known vulnerabilities")
    return FOUND if known else 0


if __name__ == "__main__":
    sys.exit(main())
