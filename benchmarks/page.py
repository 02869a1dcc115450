"""Writes the tables of a benchmark into the page that shows them, between two comments."""

from pathlib import Path

PERFORMANCE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"


def replace_block(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- figures: NAME -->` and `<!-- end of figures: NAME -->`.

    Raises ValueError if the page has not exactly one of each, in this order.
    """
    begin, end = f"<!-- figures: {name} -->\n", f"<!-- end of figures: {name} -->"
    content = page.read_text()
    before, found, rest = content.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended or begin in after or end in before:
        raise ValueError(f"{page} needs one {begin.strip()} and, behind it, one {end}")
    page.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{after}")
