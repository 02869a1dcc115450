"""The audit of the image's packages, against a database on this machine; and what it audits."""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, ClassVar

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.audit import CONSTRAINTS, FOUND, NOT_CHECKED, ROOT, Package, main, packages

PINNED = (
    "a-b==1.0 \\\n    --hash=sha256:00\nc==2.post1 ; sys_platform == 'win32' \\\n    --hash=x\n"
)


class Database(BaseHTTPRequestHandler):
    """Knows one vulnerability of one version; notes what it was asked."""

    asked: ClassVar[list[Any]] = []
    body: ClassVar[bytes | None] = None

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        self.asked.append((self.path, queries))
        results = [
            {"vulns": [{"id": "X-1"}]} if each["package"]["name"] == "a-b" else {}
            for each in queries
        ]
        body = self.body or json.dumps({"results": results}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def database() -> Iterator[str]:
    Database.asked.clear()
    Database.body = None
    server = HTTPServer(("127.0.0.1", 0), Database)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "constraints.txt"
    path.write_text(PINNED)
    return str(path)


def test_what_a_file_pins() -> None:
    assert packages(PINNED) == [Package("a-b", "1.0"), Package("c", "2.post1")]


def test_vulnerabilities_are_named(
    database: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([file, "--database", database]) == FOUND
    printed = capsys.readouterr().out
    assert printed == "a-b 1.0: X-1\n2 packages checked, 1 with known vulnerabilities\n"
    [(path, queries)] = Database.asked
    assert path == "/v1/querybatch"
    assert queries[1] == {"package": {"name": "c", "ecosystem": "PyPI"}, "version": "2.post1"}


def test_without_any(database: str, tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("c==1\n")
    assert main([str(path), "--database", database]) == 0


@pytest.mark.parametrize("body", [b"[]", b"<html>", b'{"results": []}'])
def test_another_response_is_no_result(
    database: str, file: str, body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    Database.body = body
    assert main([file, "--database", database]) == NOT_CHECKED
    assert "nothing is known about 2 packages: a-b 1.0, c 2.post1" in capsys.readouterr().err


def test_it_says_what_it_could_not_reach(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([file, "--database", "http://127.0.0.1:1"]) == NOT_CHECKED
    assert "not checked: http://127.0.0.1:1 cannot be reached" in capsys.readouterr().err


def test_every_dependency_is_pinned_with_hashes() -> None:
    """Those of pyproject.toml, and theirs."""
    text = "\n".join(file.read_text() for file in CONSTRAINTS)
    pinned = {canonicalize_name(each.name): each.version for each in packages(text)}
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text.partition("\n\n")[2] or text)
    for block in blocks:
        if "==" in block:
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block[:80]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("kerberos", "keystores", "oauth", "otel", "tiered")
    in_image = [each for name in names for each in extras[name]]
    wanted = [Requirement(each) for each in (*project["dependencies"], *in_image)]
    seen = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        assert name in pinned, f"{name}: run `make constraints`"
        assert requirement.specifier.contains(pinned[name], prereleases=True), name
        if name not in seen:
            seen.add(name)
            # Not every machine has the packages of the extras.
            with suppress(PackageNotFoundError):
                wanted += [Requirement(each) for each in distribution(name).requires or ()]


def test_the_image_installs_nothing_else() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"pip install (.*?)[\"\\]", text) == [
        "--no-cache-dir --require-hashes",
        "--no-cache-dir --no-deps --no-build-isolation . ",
    ]
    assert "-r constraints.txt" in text
    assert '-r "constraints-$extra.txt"' in text
    lines = re.findall("^ARG EXTRAS=(.*)", text, re.M)
    named = {each for line in lines for each in line.split(",")}
    files = {file.stem.partition("-")[2] for file in CONSTRAINTS}
    assert named - {"keystores"} < files == {"", "kerberos", "oauth", "otel", "tiered"}
