"""Measures of the source: size by package, ports, and how much of it knows how the loop is shared.

    python tools/source_measures.py [CHECKOUT]

What is counted is the product, without the generated messages. A file "knows" if it names the
primitive (`ottla.protocol.steps`) or an older one, or gives up the loop by hand; a constant counts
if its name says how much is done before the loop is given up.
"""

import ast
import re
import sys
from pathlib import Path

PACKAGES = ("broker", "protocol", "storage", "controller", "cli", "pyspark_ottla", "ottla")
GENERATED = "protocol/messages/"
KNOWS = re.compile(
    r"protocol\.steps|runtime\.slices|controller\.slices|\bSteps\b|\bsleep\(0\)|"
    r"_in_(?:steps|slices|turns|parts)\b|run_at_once|\bin_slices\b"
)
CONSTANT = re.compile(
    r"^_?[A-Z_]*(?:PER_(?:STEP|SLICE|TURN|CHECK|PART|PIECE)|(?:SLICE|TURN)_SECONDS|"
    r"(?:PARTITIONS|TOPICS|NAMES|STEPS|ITEMS|ROWS)_AT_ONCE)\b[^=\n]*=",
    re.MULTILINE,
)
DRIVES = re.compile(
    r"\b(?:run_in_slices|run_in_turns|in_slices|run_at_once|SlicedJobs|TurnQueue|Turn\(|over\(|"
    r"respond_when_built|respond_in_slices|in_parts|Slices\()|sleep\(0\)"
)
TWIN = re.compile(r"def \w+_in_(?:steps|slices|turns|parts)\b")


def files_of(root: Path) -> dict[str, str]:
    """The sources of the product by their path."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            inside = not any(part.is_symlink() for part in (path, *path.parents))
            if inside and not name.startswith(GENERATED):
                found[name] = path.read_text(encoding="utf-8")
    return found


def is_port(node: ast.AST) -> bool:
    """Whether it is the class statement of a Protocol."""
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(base).split("[")[0] in ("Protocol", "typing.Protocol") for base in node.bases
    )


def lines_of(root: Path, *patterns: str) -> int:
    """Lines of the files that match a pattern below the root."""
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main() -> None:
    """Print the measures of a checkout."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = files_of(root)
    for package in PACKAGES:
        texts = [text for name, text in files.items() if name.startswith(f"{package}/")]
        lines = sum(len(text.splitlines()) for text in texts)
        print(f"{package + ':':16} {len(texts):4} files {lines:7,} lines")
    lines = sum(len(text.splitlines()) for text in files.values())
    nodes = [node for text in files.values() for node in ast.walk(ast.parse(text))]
    short = sum(len(text.splitlines()) < 80 for text in files.values())
    print(f"{'product:':16} {len(files):4} files {lines:7,} lines, {short} files below 80 lines")
    print("Protocol classes:", sum(map(is_port, nodes)))
    for what, pattern in (
        ("files that name the sharing of the loop", KNOWS),
        ("files that give the loop up themselves", DRIVES),
    ):
        print(f"{what}: {sum(map(bool, map(pattern.search, files.values())))}")
    for what, pattern in (("constants of it", CONSTANT), ("twins x_in_steps and alike", TWIN)):
        print(f"{what}: {sum(len(pattern.findall(text)) for text in files.values())}")
    print(f"tests: {lines_of(root, 'tests/**/*.py'):,} lines")
    print(f"docs and CHANGELOG: {lines_of(root, 'docs/**/*.md', 'CHANGELOG.md'):,} lines")


if __name__ == "__main__":
    main()
