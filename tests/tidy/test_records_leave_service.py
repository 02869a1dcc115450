"""Each place that removes records has a row that says which two facts allow it."""

from __future__ import annotations

import ast

import pytest

from tests.tidy.records_leaving_service import OTHERS, REMOVALS, Removal
from tests.tidy.removing_calls import calls_in, removing_calls
from tests.tidy.source_tree import ROOT

# A sentence each, so that nobody writes "see above".
FACT_CHARACTERS = 4


def test_each_call_is_in_a_row() -> None:
    """With all calls of the function: one more in it is another decision."""
    rows = {row.site: row.calls for row in REMOVALS}
    rows |= {site: calls for site, (calls, _) in OTHERS.items()}
    assert len(rows) == len(REMOVALS) + len(OTHERS), "a site has two rows"
    found = {site: " ".join(calls) for site, calls in removing_calls().items()}
    new = {site: calls for site, calls in found.items() if rows.get(site) != calls}
    assert not new, (
        "these delete, rename or truncate: add rows to tests/tidy/records_leaving_service.py, with"
        " the two facts that have to agree, and to the table of docs/operations.md"
    )
    assert not rows.keys() - found.keys(), "these are gone"


@pytest.mark.parametrize("row", REMOVALS, ids=lambda row: row.site)
def test_a_row_names_two_facts_and_a_test(row: Removal) -> None:
    for text in (row.what, row.fact_one, row.fact_two, row.otherwise):
        assert len(text) >= FACT_CHARACTERS, text
    file, _, name = row.test.partition("::")
    assert f"def {name}" in (ROOT / file).read_text() if name else (ROOT / file).exists()


def test_calls_are_found_however_they_are_written() -> None:
    source = """
class A:
    def each(self, log, deletions, names):
        self._fs.remove(path)
        log.directory.fs.replace(a, b)
        run(partial(fs.truncate, 3))
        self._deletions.add(path)
        if set_file_aside(fs, path, reason):
            log.truncate_to(4)
        names.remove("a")
        "a".replace("b", "c")
        self._names.add("c")
"""
    found = [call for _, call in calls_in("storage/log/log.py", ast.parse(source))]
    assert found == [
        *("fs.remove", "fs.replace", "truncate", "deletions.add"),
        *("set_file_aside", "truncate_to"),
    ]
