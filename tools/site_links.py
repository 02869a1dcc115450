"""A hook of mkdocs: links of the pages to files outside docs/ lead to the repository.

The pages are read on the repository's own site, too, where such links are relative.
"""

import posixpath
import re
from typing import Any

REPOSITORY = "https://github.com/ottla-project/ottla/blob/main/"

_UPWARDS = re.compile(r"\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its links out of docs/ replaced: `](../CONTRIBUTING.md)` of a page in docs/ is
    `](https://.../CONTRIBUTING.md)`. Links to other pages stay."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replaced(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        return found[0] if target.startswith("docs/") else f"]({REPOSITORY}{target})"

    return _UPWARDS.sub(replaced, markdown)
