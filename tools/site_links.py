"""A hook of mkdocs: links of the pages to files outside docs/ lead to the repository.

The pages are read on the repository's own site, too, where such links are relative.
"""

import re
from typing import Any

REPOSITORY = "https://github.com/ottla-project/ottla/blob/main/"

_OUTSIDE = re.compile(r"\]\((?:\.\./)+([^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`](../CONTRIBUTING.md)` -> `](https://.../CONTRIBUTING.md)`; other links stay."""
    return _OUTSIDE.sub(lambda found: f"]({REPOSITORY}{found.group(1)})", markdown)
