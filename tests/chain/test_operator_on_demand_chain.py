"""An adapter on demand on a real API server: the first request to an engine brings it there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx
import pytest
from operator_chain import GROUP
from waiting import eventually

if TYPE_CHECKING:
    from operator_chain import Chain

pytestmark = [pytest.mark.cluster, pytest.mark.chain]


def ask(chain: Chain, engine: str, model: str) -> tuple[int, str]:
    """Return status, and text or line."""
    url = f"{chain.engines[engine].url}/v1/completions"
    response = httpx.post(url, json={"model": model, "prompt": "x"}, timeout=120)
    content = response.json()
    text = content["choices"][0]["text"] if response.is_success else content["error"]["message"]
    return response.status_code, text


def test_the_first_request_brings_an_adapter_and_unknown_names_are_not_found(chain: Chain) -> None:
    for index in range(2):
        chain.start_engine(f"engine-{index}", index)
    operator = chain.start_operator()
    chain.pool()
    on_demand = {"policy": "OnDemand", "idleSeconds": 3600}
    chain.adapter("sql", placement=on_demand)
    chain.adapter("chat", "d02-all-fp32", placement={"policy": "OnDemand"})
    model = f"{chain.namespace}/sql"
    for name in ("sql", "chat"):
        eventually(lambda name=name: chain.ready(name))
    assert [chain.loads(engine) for engine in chain.engines] == [0, 0]
    assert chain.status("sql")["enginesSummary"] == "0/0"

    # Twenty first requests at once: one load on that engine, none on the other.
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: ask(chain, "engine-0", model), range(20)))
    (found,) = set(answers)
    assert [chain.loads(engine) for engine in chain.engines] == [1, 0]
    # The answers do not wait for the status to be written.
    eventually(lambda: chain.status("sql")["enginesSummary"] == "1/1")
    assert found == (200, chain.status("sql")["digest"][7:19])
    assert [e["podName"] for e in chain.status("sql")["engines"]] == ["engine-0"]

    # A name that no adapter of the pool has is not found, long before a request's time is over.
    status, line = ask(chain, "engine-0", f"{chain.namespace}/nobody")
    assert (status, line) == (404, f"The model `{chain.namespace}/nobody` does not exist.")

    # Nobody has asked for it for two seconds: it goes, and is ready to come again.
    chain.custom.patch_namespaced_custom_object(
        *GROUP,
        chain.namespace,
        "loraadapters",
        "sql",
        {"spec": {"placement": {**on_demand, "idleSeconds": 2}}},
    )
    eventually(lambda: chain.status("sql")["enginesSummary"] == "0/0", what="the idle one goes")
    eventually(lambda: chain.served("engine-0") == set())
    assert chain.ready("sql")

    # Without the operator an unknown name ends at once; with it again, the adapter comes.
    operator.process.kill()
    other = f"{chain.namespace}/chat"
    eventually(lambda: ask(chain, "engine-1", other)[0] == 404)
    status, line = ask(chain, "engine-1", other)
    assert (status, "no operator is connected" in line) == (404, True)
    chain.start_operator()
    eventually(lambda: ask(chain, "engine-1", other)[0] == 200)
    eventually(lambda: chain.status("chat")["enginesSummary"] == "1/1")
    assert ask(chain, "engine-1", other)[1] == chain.status("chat")["digest"][7:19]
