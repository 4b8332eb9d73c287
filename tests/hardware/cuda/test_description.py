"""Descriptions of GPUs refuse what cannot be, and derived numbers have the units they claim."""

import pytest
from pydantic import ValidationError

from tvm_ext.hardware.matrix_instructions import WARP_INSTRUCTIONS, WARP_SHARE
from tvm_ext.hardware.targets import resolve_target


def test_a_gpu_has_rates_for_what_kernels_are_made_of():
    hopper, ampere = resolve_target("nvidia-h100"), resolve_target("nvidia-a100")
    assert hopper.peak_flops("float8_e4m3fn") == hopper.peak_flops("float32")
    assert hopper.peak_flops("float64") == 34e12
    for machine, share in ((hopper, WARP_SHARE), (ampere, 1.0)):
        rate = machine.instruction_flops(WARP_INSTRUCTIONS["float32"])
        assert rate == machine.peak_flops("tf32") * share


def test_with_cores_of_a_gpu_scales_tensor_cores():
    gpu = resolve_target("nvidia-a100")
    half = gpu.with_cores(gpu.sms // 2)
    for dtype in ("float32", "float16"):
        assert half.peak_flops(dtype) == pytest.approx(gpu.peak_flops(dtype) / 2)


def test_gpu_arch_is_checked():
    fields = resolve_target("nvidia-a100").model_dump()
    with pytest.raises(ValidationError, match="arch"):
        type(resolve_target("nvidia-a100"))(**(fields | {"arch": "compute_80"}))
