"""TVM targets of kind cuda are GPUs, with numbers of the nearest preset."""

import pytest
import tvm

from tvm_ext.hardware.targets import resolve_target

ARM = "aarch64-linux-gnu"


@pytest.mark.parametrize(
    ("arch", "numbers_of"),
    [
        ("sm_80", "nvidia-a100"),
        ("sm_86", "nvidia-a100"),
        ("sm_89", "nvidia-rtx4090"),
        ("sm_90", "nvidia-h100"),
        ("sm_70", "nvidia-a100"),
        ("sm_120", "nvidia-h100"),
    ],
)
def test_cuda_target_by_capability(arch, numbers_of):
    description = resolve_target(tvm.target.Target({"kind": "cuda", "arch": arch}))
    assert description.arch == arch
    assert description.sms == resolve_target(numbers_of).sms


def test_cuda_target_keeps_what_it_was_given():
    host = {"kind": "llvm", "mtriple": ARM, "mcpu": "neoverse-n1"}
    config = {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 512, "host": host}
    rebuilt = resolve_target(tvm.target.Target(config)).tvm_target()
    assert rebuilt.attrs["max_threads_per_block"] == 512
    assert rebuilt.host.attrs["mcpu"] == "neoverse-n1"
