"""Lets the tests import the benchmark's modules as its script does, and measures without pauses."""

import sys
from pathlib import Path

import pytest

from tvm_ext.hardware import timing

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the times: no need to wait until the threads of one program sleep."""
    monkeypatch.setattr(timing, "_SETTLE_SECONDS", 0.0)
