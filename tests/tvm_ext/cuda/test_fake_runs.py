"""TVM's CUDA runtime with our runs around it, on a CUDA whose device is the host."""

import re

import pytest
from fake_gpu import needs_gcc, run_script

pytestmark = needs_gcc


def test_runs(tmp_path) -> None:
    assert run_script("check_runs", str(tmp_path)).endswith("done\n")


def test_failures() -> None:
    lines = run_script("check_failures", FAKE_CUDA_DEVICES="2").splitlines()
    assert re.match(
        r"TargetError: .*nvidia-h200 \(sm_90a\), and the GPU is Old GPU \(sm_80\); expected a GPU "
        r"of compute capability 9\.0: compile",
        lines[0],
    )
    assert re.match(r"RunError: the GPU has no memory left .*weights.*buffers.*smaller", lines[1])
    assert re.match(
        r"RunError: PyTorch is recording a CUDA graph.*outside of torch\.cuda", lines[2]
    )
    assert re.match(
        r"RunError: a kernel of small failed on the GPU \(cudaErrorIllegalAddress\), .*lost",
        lines[3],
    )
    for line in lines[4:8]:
        assert re.match(r"RunError: the GPU cannot be used any more .*restart the process", line)
    assert lines[8] == "done"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"FAKE_CUDA_NO_DEVICE": "1", "CUDA_VISIBLE_DEVICES": ""}, r"no CUDA device .*VISIBLE"),
        ({"FAKE_CUDA_VERSION": "12040"}, r"runs CUDA up to 12\.4, TVM's runtime is of CUDA 13;"),
    ],
)
def test_a_driver_that_cannot_be_used(setting: dict[str, str], words: str) -> None:
    (line,) = run_script("check_driver", **setting).splitlines()
    assert re.match(rf"TargetError: the model was compiled for nvidia-h200, and .*{words}", line)
