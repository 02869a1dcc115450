"""The responses of share groups are those of Apache Kafka 4.3.1, as they were recorded.

`make compare-share` starts both and compares.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.differential.share_recording import OTTLA, RESPONSES, differences, hold
from tests.doubles.broker_process import start_broker


def test_each_conversation_is_that_of_kafka(tmp_path: Path) -> None:
    recorded = json.loads(RESPONSES.read_text(encoding="ascii"))
    with start_broker(tmp_path, broker_id=1, **OTTLA) as broker:
        found = hold(broker.bootstrap)
    assert differences(recorded, found) == [], "python -m tests.differential.share_recording"
