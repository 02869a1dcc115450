"""The documentation as a web site: it builds without a warning, and README.md lists each page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.installed.builds import ROOT
from tools.site_links import REPOSITORY, on_page_markdown


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    assert REPOSITORY + "CONTRIBUTING.md" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "operations" / "index.html").exists()


def test_the_navigation_has_every_page_once() -> None:
    """In one of its kinds: tutorial, how-to, reference, explanation."""
    found = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert set(found) == pages, "put the page into `nav` of mkdocs.yml"
    assert len(found) == len(pages)


def test_links_outside_the_pages_lead_to_the_repository() -> None:
    text = on_page_markdown("[a](../ARCHITECTURE.md#x) [b](cli.md) [c](../../x.py)")
    assert text == f"[a]({REPOSITORY}ARCHITECTURE.md#x) [b](cli.md) [c]({REPOSITORY}x.py)"


def test_the_index_lists_every_page() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    linked = set(re.findall(r"\]\(([\w/.-]+\.md)", (ROOT / "docs" / "README.md").read_text()))
    assert pages - {"README.md"} <= linked | {
        page for page in pages if page.count("/") and f"{page.split('/')[0]}.md" in linked
    }
