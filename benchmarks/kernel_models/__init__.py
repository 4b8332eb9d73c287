"""The single kernels that are measured, each as a tiny ONNX model, so that all peers take the same.

Names give the size: ``conv1x1_56x56_64_256`` has 56x56 positions, 64 channels in and 256 out.
"""

from collections.abc import Iterable

from kernel_models.common import KernelModel, Scale
from kernel_models.convolutions import convolutions
from kernel_models.matmuls import matmuls
from kernel_models.memory_bound import fusion_chains, memory_bound
from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.errors import InputError

__all__ = ["GROUPS", "KernelModel", "Scale", "kernel_models", "select_kernels"]

_MAKERS = {
    "conv": convolutions,
    "matmul": matmuls,
    "memory": memory_bound,
    "fusion": fusion_chains,
}
GROUPS = tuple(_MAKERS)


def kernel_models(scale: Scale) -> list[KernelModel]:
    """All kernels, by group."""
    return [kernel for make in _MAKERS.values() for kernel in make(scale)]


def select_kernels(kernels: Iterable[KernelModel], names: Iterable[str]) -> list[KernelModel]:
    """The kernels that are named, themselves or by their group; all of them without a name.

    Raises
    ------
    InputError
        There is no kernel and no group of some name.
    """
    known = list(kernels)
    wanted = set(names)
    words = {*GROUPS, *(kernel.name for kernel in known)}
    for name in sorted(wanted - words):
        raise InputError(
            f"--kernels names '{name}', which is no kernel and no group; "
            f"{nearest_hint(name, words)}"
        )
    if not wanted:
        return known
    return [kernel for kernel in known if {kernel.name, kernel.group} & wanted]
