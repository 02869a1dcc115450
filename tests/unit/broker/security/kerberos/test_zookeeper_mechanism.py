"""Kerberos as pure-sasl calls it, over scripted contexts; `make compat-kerberos` has ZooKeeper."""

from __future__ import annotations

import puresasl.client
import puresasl.mechanisms
import pytest

from ottla.broker.security.kerberos.zookeeper_mechanism import register_gssapi
from ottla.broker.security.sasl.gssapi_exchange import GssapiExchange
from tests.doubles.scripted_gss import ScriptedContext


def test_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puresasl.mechanisms, "mechanisms", {})
    register_gssapi()
    hosts: list[str] = []

    def new_context(host: str) -> ScriptedContext:
        hosts.append(host)
        return ScriptedContext("kafka/h@R", is_client=True)

    client = puresasl.client.SASLClient(
        "zk1", mechanism="GSSAPI", service="zookeeper", new_context=new_context
    )
    server = GssapiExchange(lambda: ScriptedContext(is_client=False), str)
    challenge = None
    while not client.complete:
        challenge = server.step(client.process(challenge))
    client.dispose()
    assert server.is_complete
    assert server.name == "kafka/h@R"
    assert hosts == ["zk1"]
