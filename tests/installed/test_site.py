"""The documentation as a web site: it builds without a warning, and README.md lists each page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from tests.installed.builds import ROOT
from tools.site_links import REPOSITORY, on_page_markdown


class Page(HTMLParser):
    """The links and the ids of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name in ("href", "src") and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_it_builds_without_a_warning(site: Path) -> None:
    assert REPOSITORY + "CONTRIBUTING.md" in (site / "index.html").read_text()
    assert (site / "operations" / "index.html").exists()


def test_links_and_anchors_of_the_site_exist(site: Path) -> None:
    """Also those to files of the repository, which mkdocs does not follow."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 20
    broken = [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not exists(link, path, pages)
    ]
    assert not broken, "\n".join(broken)


def exists(link: str, page: Path, pages: dict[Path, Page]) -> bool:
    address, _, anchor = unquote(link).partition("#")
    if address.startswith(REPOSITORY):
        return (ROOT / address.removeprefix(REPOSITORY)).exists()
    if re.match(r"[a-z]+:|//", address):
        return True  # other hosts: a test does not ask them
    # The page of errors has absolute links.
    target = Path(os.path.normpath(page.parent / address.lstrip("/"))) if address else page
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    return not anchor or target not in pages or anchor in pages[target].ids


def test_the_navigation_has_every_page_once() -> None:
    """In one of its kinds: tutorial, how-to, reference, explanation."""
    found = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert set(found) == pages, "put the page into `nav` of mkdocs.yml"
    assert len(found) == len(pages)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("cli.md", "../ARCHITECTURE.md#x", f"{REPOSITORY}ARCHITECTURE.md#x"),
        ("cli.md", "spark.md", "spark.md"),
        ("spark/yarn.md", "../spark.md#x", "../spark.md#x"),
        ("spark/yarn.md", "../../tests/x.py", f"{REPOSITORY}tests/x.py"),
    ],
)
def test_links_outside_the_pages_lead_to_the_repository(
    page: str, link: str, expected: str
) -> None:
    place = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert on_page_markdown(f"[a]({link}) b", place) == f"[a]({expected}) b"


def test_the_index_lists_every_page() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    linked = set(re.findall(r"\]\(([\w/.-]+\.md)", (ROOT / "docs" / "README.md").read_text()))
    assert pages - {"README.md"} <= linked | {
        page for page in pages if page.count("/") and f"{page.split('/')[0]}.md" in linked
    }
