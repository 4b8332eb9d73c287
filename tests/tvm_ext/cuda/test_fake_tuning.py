"""Tuning with TVM's CUDA runtime, on a CUDA whose device is the host."""

from pathlib import Path

import pytest
from fake_gpu import needs_gcc, run_script


@pytest.mark.slow
@needs_gcc
def test_a_session(tmp_path: Path) -> None:
    assert run_script("check_tuning", str(tmp_path)).endswith("done\n")
