"""The ONNX project's backend tests: what passes, what is refused, and nothing else.

They run in a process of their own, ``run.py``, which starts more: a crash is a result.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from expected_failures import may_differ, reason_of

RUN = Path(__file__).parent / "run.py"

# One that ships with its data, and two that ONNX makes.
FAST_CASES = ("test_AvgPool1d", "test_dft", "test_reduce_sum_keepdims_example")
FAST_MODULES = "dft,reducesum"
SLOW_SHARDS = 8


def outcomes(*arguments: str) -> list[dict[str, str]]:
    command = [sys.executable, "-W", "ignore", str(RUN), "--json", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.startswith("["), found.stderr[-2000:]
    return json.loads(found.stdout)


def unexpected(found: list[dict[str, str]]) -> list[str]:
    """Cases that should have passed, passed unexpectedly, or did not end in a clear error."""
    lines = []
    for outcome in found:
        reason = reason_of(outcome["name"])
        if may_differ(outcome["name"]) and outcome["status"] in ("passed", "wrong"):
            continue
        if reason is None and outcome["status"] not in ("passed", "random"):
            lines.append(f"{outcome['name']}: {outcome['status']}: {outcome['reason']}")
        elif reason is not None and outcome["status"] != "refused":
            lines.append(f"{outcome['name']}: {outcome['status']}, expected a refusal: {reason}")
    return lines


def test_a_part():
    pattern = f"^({'|'.join(FAST_CASES)})$"
    found = outcomes("--modules", FAST_MODULES, "--filter", pattern)
    assert sorted(outcome["name"] for outcome in found) == sorted(FAST_CASES)
    assert not unexpected(found)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(SLOW_SHARDS))
def test_all(index):
    assert not unexpected(outcomes("--shard", f"{index}/{SLOW_SHARDS}"))
