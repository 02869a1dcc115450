"""The defects belong to the tree as it is, and their texts say what is replaced."""

from pathlib import Path

import pytest

from tests.simulation.cluster.defects.__main__ import HERE, ROOT
from tests.simulation.cluster.defects.defect import DoesNotApply, apply, check, read

DEFECTS = sorted(HERE.glob("*.txt"))

TEXT = """\
Defect: A test of the defects (a).
Arguments: --kinds kill

in FOLDER/old.py Log.end
     if self.closed:
-        return 1
+        return 2
"""
MODULE = """\
class Log:
    def start(self):
        if self.closed:
            return 1

    @property
    def end(self):
        for each in self.parts:
            if self.closed:
                return 1
        return 3
"""


@pytest.mark.parametrize("path", DEFECTS, ids=lambda path: path.stem)
def test_a_defect_applies(path: Path) -> None:
    """A change of the function that it changes has to change the defect, too."""
    defect = read(path)
    assert defect.what.endswith(".")
    assert defect.changes
    check(defect, ROOT)


def tree(root: Path, name: str, module: str) -> Path:
    (root / "broker").mkdir()
    (root / "broker" / name).write_text(module)
    (root / "text.txt").write_text(TEXT.replace("FOLDER", "broker"))
    return root / "broker" / name


@pytest.mark.parametrize("name", ["old.py", "new.py"])
def test_the_function_is_found_in_any_file_at_any_indentation(tmp_path: Path, name: str) -> None:
    module = tree(tmp_path, name, MODULE)
    apply(read(tmp_path / "text.txt"), tmp_path)
    assert module.read_text() == MODULE.replace(
        "        return 1\n        return 3", "        return 2\n        return 3"
    )


@pytest.mark.parametrize(
    "module",
    [
        MODULE.replace("Log", "OtherLog"),
        MODULE.replace("return 1", "return 0"),
        MODULE.replace("        return 3", "        if self.closed:\n            return 1"),
    ],
)
def test_a_function_that_has_changed_is_named(tmp_path: Path, module: str) -> None:
    tree(tmp_path, "new.py", module)
    with pytest.raises(DoesNotApply, match=r"Log\.end"):
        check(read(tmp_path / "text.txt"), tmp_path)
