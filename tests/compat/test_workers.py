"""Scenarios of real clients on two workers; `make compat-workers` runs all that use one broker.

Clients know the shared bootstrap port. Partitions, groups and transactional ids are on both
workers.
"""

from collections.abc import Iterator

import pytest

from tests.compat.test_groups import (
    test_committed_offsets_are_where_the_next_member_starts,
    test_group_reads_everything_once,
    test_two_members_share_and_one_takes_over,
)
from tests.compat.test_produce_consume import (
    test_idempotent_producer,
    test_large_record,
    test_topic_created_by_the_first_record,
)
from tests.compat.test_transactions import (
    test_a_second_producer_fences_the_first,
    test_an_open_transaction_holds_committed_readers_back,
    test_committed_and_aborted_records,
)
from tests.doubles.workers_process import start_workers

__all__ = [
    "test_a_second_producer_fences_the_first",
    "test_an_open_transaction_holds_committed_readers_back",
    "test_committed_and_aborted_records",
    "test_committed_offsets_are_where_the_next_member_starts",
    "test_group_reads_everything_once",
    "test_idempotent_producer",
    "test_large_record",
    "test_topic_created_by_the_first_record",
    "test_two_members_share_and_one_takes_over",
]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_workers(tmp_path_factory.mktemp("machine")) as machine:
        yield machine.bootstrap
