"""Damaged models: each matches ONNX Runtime or ends in one clear line, whatever was done to it.

They run in a process of their own, ``run.py``, which starts more: a crash is a result.
"""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import mutations
import onnx
import pytest
import seeds

RUN = Path(__file__).parent / "run.py"
FAST_COUNT = 8
FAILURES = ("wrong", "internal error", "memory", "not one line", "crash", "timeout")


def outcomes(*arguments: str) -> list[dict[str, str]]:
    command = [sys.executable, "-W", "ignore", str(RUN), "--json", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.startswith("["), found.stderr[-2000:]
    return json.loads(found.stdout)


def failures(found: list[dict[str, str]]) -> list[str]:
    bad = [outcome for outcome in found if outcome["status"] in FAILURES]
    return [f"{o['number']} {o['name']}: {o['status']}: {o['reason']}" for o in bad]


@pytest.mark.extended
def test_a_part():
    found = outcomes("--count", str(FAST_COUNT))
    assert not failures(found)
    assert len(found) == FAST_COUNT
    assert {"match", "refused"} <= {outcome["status"] for outcome in found}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_all(seed):
    found = outcomes("--seed", str(seed))
    assert not failures(found)
    assert sum(outcome["status"] == "match" for outcome in found) > 50


@pytest.mark.parametrize("index", range(len(seeds.SEEDS)))
def test_seeds_are_sound(index):
    model = onnx.load_from_string(seeds.seed_bytes(index))
    # The checker looks for external data in the folder where it runs.
    for tensor in model.graph.initializer:
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        if not tensor.raw_data:
            count = math.prod(tensor.dims)
            tensor.raw_data = bytes(4 * count)
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("mutation", sorted(set(mutations.MUTATIONS), key=lambda m: m.__name__))
def test_every_mutation_changes_some_model(mutation):
    for index in range(len(seeds.SEEDS)):
        content = seeds.seed_bytes(index)
        for seed in range(8):
            model = onnx.load_from_string(content)
            mutation(model, random.Random(seed))
            if model.SerializeToString() != content:
                return
    pytest.fail(f"{mutation.__name__} leaves every model as it is")


def test_damage_is_the_same_for_the_same_number():
    content = seeds.seed_bytes(0)
    first, second = (mutations.damaged(content, random.Random("0/5")) for _ in range(2))
    assert first == second
