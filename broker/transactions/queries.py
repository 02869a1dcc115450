"""DescribeTransactions and ListTransactions (KIP-664)."""

from collections.abc import Callable

from ottla.broker.coordination.coordinated_partitions import CoordinatedPartitions
from ottla.broker.transactions.partition import TransactionPartition
from ottla.broker.transactions.state import STATE_NAMES, Transaction, TransactionState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import describe_transactions, list_transactions
from ottla.protocol.steps import Steps


class TransactionQueries:
    """Reads the memory of the transaction coordinator."""

    def __init__(
        self, partitions: CoordinatedPartitions[TransactionPartition], now_ms: Callable[[], int]
    ) -> None:
        self._partitions = partitions
        self._now_ms = now_ms

    def describe(self, transactional_id: str) -> describe_transactions.TransactionState:
        described = describe_transactions.TransactionState(transactional_id=transactional_id)
        if not self._partitions.is_running:
            described.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return described
        if not transactional_id:
            described.error_code = ErrorCode.INVALID_REQUEST
            return described
        described.error_code = self._partitions.status_of(transactional_id)
        state_partition = self._partitions.home_of(transactional_id)
        if described.error_code or state_partition is None:
            return described
        transaction = state_partition.transactions.get(transactional_id)
        if transaction is None:
            described.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return described
        value = transaction.value
        topics: dict[str, list[int]] = {}
        for partition in sorted(value.partitions):
            topics.setdefault(partition.topic, []).append(partition.partition)
        described.transaction_state = value.state.label
        described.transaction_timeout_ms = value.timeout_ms
        described.transaction_start_time_ms = value.start_timestamp_ms
        described.producer_id = value.producer_id
        described.producer_epoch = value.epoch
        described.topics = [
            describe_transactions.TopicData(name, indexes) for name, indexes in topics.items()
        ]
        return described

    def list_transactions(
        self, states: frozenset[str], producer_ids: frozenset[int], duration_ms: int
    ) -> Steps[list_transactions.ListTransactionsResponse]:
        """List the transactional ids of this coordinator that match all filters.

        A `duration_ms` of 0 or more selects transactions that run for longer than that. Ids created
        in a pause may be missing.
        """
        if not self._partitions.is_running:
            return _list_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._partitions.is_loading:
            return _list_error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        now_ms = self._now_ms()
        response = list_transactions.ListTransactionsResponse(
            unknown_state_filters=sorted(states - STATE_NAMES)
        )
        for state_partition in self._partitions.active:
            for transaction in list(state_partition.transactions.values()):
                value = transaction.value
                if _is_selected(transaction, states, producer_ids) and (
                    duration_ms < 0 or now_ms - value.start_timestamp_ms > duration_ms
                ):
                    response.transaction_states.append(
                        list_transactions.TransactionState(
                            transaction.transactional_id, value.producer_id, value.state.label
                        )
                    )
                yield
        return response


def _is_selected(
    transaction: Transaction, states: frozenset[str], producer_ids: frozenset[int]
) -> bool:
    value = transaction.value
    if value.state is TransactionState.DEAD:
        return False
    return (not states or value.state.label in states) and (
        not producer_ids or value.producer_id in producer_ids
    )


def _list_error(error: int) -> list_transactions.ListTransactionsResponse:
    return list_transactions.ListTransactionsResponse(error_code=error)
