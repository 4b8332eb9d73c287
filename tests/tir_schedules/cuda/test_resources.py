"""What nvcc makes of the kernels: they assemble for both generations, nothing is spilled."""

from pathlib import Path

import pytest
from cuda_kernels import needs_nvcc, resources, scheduled, whole_source
from lowering import kernel_of
from template_cases import KERNELS_OF_MODELS
from tvm import relax

op = relax.op

pytestmark = needs_nvcc


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_spills(arch: str, tmp_path: Path) -> None:
    kernels = [
        scheduled(template, kernel_of(e, *inputs)) for template, e, inputs in KERNELS_OF_MODELS
    ]
    found = resources(whole_source(*kernels), arch, tmp_path)
    assert len(found) >= len(KERNELS_OF_MODELS), "few long rows are shared by several blocks"
    for kernel in found:
        assert kernel.spilled == 0
        assert kernel.stack == 0
        assert kernel.registers <= 128
