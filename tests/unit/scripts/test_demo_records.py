"""The demo's data and the count it is checked against."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.doubles.scripts import load_script

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "demo_records.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    return load_script("scripts/demo_records.py")


def test_the_same_real_text_each_time(demo: ModuleType) -> None:
    first, second = demo.text_records(), demo.text_records()
    assert first == second
    assert demo.RECORDS_MIN <= len(first) <= demo.RECORDS_MAX
    assert {name for record in first for name, _ in record.headers} == {"line", "package"}
    assert any(record.value == b"" for record in first), "empty lines are records, too"


def test_totals_are_counted_by_package(demo: ModuleType) -> None:
    records = [
        demo.TextRecord(b"json/a.py", b"12345", [("line", b"1"), ("package", b"json")]),
        demo.TextRecord(b"json/a.py", b"", [("line", b"2"), ("package", b"json")]),
        demo.TextRecord(b"json/b.py", b"1", [("line", b"1"), ("package", b"json")]),
        demo.TextRecord(b"abc.py", b"12", [("line", b"1"), ("package", b"abc")]),
    ]
    assert demo.totals(records) == {
        "json": demo.PackageTotals(3, 2, 6, 5),
        "abc": demo.PackageTotals(1, 1, 2, 2),
    }


def test_a_digest_knows_order_and_headers(demo: ModuleType) -> None:
    one = demo.TextRecord(b"k", b"1", [("line", b"1")])
    two = demo.TextRecord(b"k", b"2", [("line", b"2")])
    other = demo.TextRecord(b"k", b"2", [("line", b"3")])
    digests = [demo.digest(some)[b"k"] for some in ([one, two], [two, one], [one, other])]
    assert len(set(digests)) == 3
