"""The CPU and the GPU that structure is tested for, whatever machine the tests run on."""

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.targets import resolve_target


def _cpu(name: str) -> CpuDescription:
    found = resolve_target(name)
    assert isinstance(found, CpuDescription)
    return found


def _gpu(name: str) -> CudaDescription:
    found = resolve_target(name)
    assert isinstance(found, CudaDescription)
    return found


MACHINE = _cpu("avx512")
NARROW = _cpu("avx2")
GPU = _gpu("nvidia-a100")
