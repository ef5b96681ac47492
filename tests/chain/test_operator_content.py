"""Sources that change under one address, and adapters that fit an engine in part."""

from __future__ import annotations

import json
from typing import Any

import pytest
from described import describe
from localcluster import find_binary
from operator_chain import CASES, HERE, Chain
from source_builders import artifact
from waiting import eventually
from web_server import WebServer

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
PROFILE = json.loads((HERE / "profiles" / "qwen3-dense.json").read_text())


def requests_for(web: WebServer, name: str) -> list[str]:
    return [path for path in web.requests if path.startswith(f"/{name}/")]


def files_of(case: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (CASES / case).iterdir()}


def test_a_source_is_asked_as_often_as_its_spec_says_and_equal_content_is_not_loaded_again(
    chain: Chain,
) -> None:
    chain.start_engine("engine-0", 0)
    chain.pool()
    chain.start_operator()
    with WebServer().running() as web:
        for name, seconds in (("often", 1), ("seldom", 3600), ("once", 0)):
            url = web.put(f"/{name}", CASES / "d01-plain-bf16")
            source = {"http": {"url": url}, "pollIntervalSeconds": seconds}
            chain.adapter(name, source=source)
        eventually(lambda: all(chain.ready(name) for name in ("often", "seldom", "once")))
        weights = "/often/adapter_model.safetensors"
        before, loads = chain.status("often"), chain.loads("engine-0")

        web.etags[weights] = '"uploaded-again"'
        eventually(lambda: chain.status("often")["resolvedRevision"] == "uploaded-again")
        eventually(lambda: chain.ready("often"))
        after = chain.status("often")
        assert after["fingerprint"] != before["fingerprint"]
        assert (after["digest"], after.get("history", [])) == (before["digest"], [])
        assert chain.loads("engine-0") == loads

        asked = {name: len(requests_for(web, name)) for name in ("seldom", "once")}
        for name in ("often", *asked):
            web.put(f"/{name}", CASES / "d02-all-fp32")
        web.etags[weights] = '"other-content"'
        eventually(lambda: chain.status("often")["digest"] != before["digest"])
        eventually(lambda: chain.ready("often"))
        after = chain.status("often")
        assert (after["resolvedRevision"], after["history"]) == (
            "other-content",
            [before["digest"]],
        )
        assert chain.loads("engine-0") == loads + 1
        assert chain.answer("engine-0", f"{chain.namespace}/often") == after["digest"][7:19]
        for name, count in asked.items():
            assert chain.status(name)["digest"] == before["digest"]
            assert len(requests_for(web, name)) == count


def test_a_tag_that_moves_is_another_revision(chain: Chain) -> None:
    chain.start_engine("engine-0", 0)
    chain.pool()
    chain.start_operator()
    with WebServer().running() as web:
        web.files |= artifact(files_of("d01-plain-bf16"), "sql", "stable")
        reference = f"{web.url.removeprefix('http://')}/sql:stable"
        oci = {"reference": reference, "plainHttp": True}
        chain.adapter("sql", source={"oci": oci, "pollIntervalSeconds": 1})
        eventually(lambda: chain.ready("sql"))
        first = chain.status("sql")
        web.files |= artifact(files_of("d02-all-fp32"), "sql", "stable")
        eventually(lambda: chain.status("sql")["digest"] != first["digest"])
        eventually(lambda: chain.ready("sql"))
        assert chain.status("sql")["resolvedRevision"] != first["resolvedRevision"]
        assert chain.loads("engine-0") == 2


def test_what_the_engine_lacks_refuses_an_adapter_unless_its_spec_leaves_it_out(
    chain: Chain,
) -> None:
    """An engine with --lora-target-modules o_proj has, for LoRA, no other module."""
    only_o = [module for module in PROFILE["modules"] if module["name"].endswith("o_proj")]
    chain.start_engine("whole", 0, "--profile", json.dumps(PROFILE), app="whole")
    restricted = json.dumps({**PROFILE, "modules": only_o})
    chain.start_engine("restricted", 1, "--profile", restricted, app="restricted")
    for name in chain.engines:
        chain.pool(name, name)
    chain.start_operator()

    def adapter(name: str, pool: str, case: str, **spec: Any) -> None:
        chain.adapter(name, case, poolRef={"name": pool}, **spec)

    adapter("part", "restricted", "d01-plain-bf16")
    adapter("nothing", "restricted", "d02-all-fp32")
    adapter("tower", "whole", "d27-vision-tower-keys")
    adapter("asked", "whole", "d27-vision-tower-keys", dropUnmatched="tower")
    for name, text in {
        "part": "12 of 14 modules do not exist in the engine (first: model.layers.0.",
        "nothing": "no LoRA tensors match the engine: 4 of 4 modules do not exist in the engine (first: ",
        "tower": "(set spec.dropUnmatched: tower to drop 2 tensors)",
    }.items():
        eventually(lambda name=name, text=text: told(chain, name, text), what=name)
        assert chain.condition(name, "PartiallyApplied") == ("", "")
    eventually(lambda: chain.ready("asked"))
    partial = chain.full_condition("asked", "PartiallyApplied")
    assert (partial["status"], partial["reason"]) == ("True", "TowerDropped")
    assert partial["message"].endswith(" modules are applied; dropped 2 tensors of visual")
    eventually(lambda: sorted(chain.events("asked")) == ["Ready", "TowerDropped"])
    assert (chain.loads("restricted"), chain.loads("whole")) == (0, 1)

    chain.put_source("asked", "d02-all-fp32")
    eventually(lambda: chain.condition("asked", "PartiallyApplied") == ("False", "AppliedWhole"))


def told(chain: Chain, name: str, text: str) -> bool:
    kubectl = find_binary("kubectl")
    found = describe(kubectl, chain.kubeconfig, chain.namespace, "loraadapter", name)
    return found.tells("Ready", "InvalidAdapter", text)
