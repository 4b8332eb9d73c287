"""What an NVIDIA GPU is, in plain numbers."""

from typing import Annotated, Any, Literal

import tvm
from pydantic import Field, model_validator

from tvm_ext.configs.loader import Count, Positive
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.matrix_instructions import MatrixInstruction, has_rate
from tvm_ext.hardware.targets import current_machine


class CudaDescription(MachineDescription):
    """An NVIDIA GPU."""

    kind: Literal["cuda"]
    name: str
    summary: str
    arch: Annotated[str, Field(pattern=r"^sm_\d{2,3}[a-z]?$")]
    """Compute capability as nvcc names it, such as "sm_80"."""
    sms: Count
    """Streaming multiprocessors."""
    clock_ghz: Positive
    fp32_lanes_per_sm: Count
    """float32 multiply-adds one multiprocessor starts in a cycle, outside the tensor cores."""
    shared_memory_bytes: Count
    """Shared memory of a block that a kernel may declare without asking the driver for more."""
    dynamic_shared_memory_bytes: Count
    """The most that a block can have when the kernel asks for it at launch."""
    registers_per_block: Count
    l2_bytes: Count
    memory_gbs: Positive
    """Copy bandwidth of device memory, read and written bytes together."""
    l2_gbs: Positive
    """Copy bandwidth for data that stays in L2."""
    max_threads_per_block: Count
    warp_size: Count
    tensor_tflops: dict[str, Positive] = Field(default_factory=dict)
    """1e12 dense operations a second by dtype where float32's rate does not apply."""
    kernel_overhead_us: Positive
    """Time to launch one kernel that does nothing."""
    tf32: bool = False
    """Whether tensor cores may multiply float32 with 10 bits of mantissa instead of 23."""
    target_options: dict[str, Any] = Field(default_factory=dict)
    """Other attributes for the TVM target, such as "host"."""

    @model_validator(mode="after")
    def _check(self) -> "CudaDescription":
        if self.l2_gbs < self.memory_gbs:
            raise ValueError(
                f"l2_gbs {self.l2_gbs} is below memory_gbs {self.memory_gbs}; expected at least it"
            )
        self.tvm_target()
        return self

    def tvm_target(self) -> tvm.target.Target:
        """The TVM target that builds code for this GPU. Raises ValueError for a wrong option."""
        config = {
            **self.target_options,
            "kind": "cuda",
            "arch": self.arch,
            "max_threads_per_block": self.max_threads_per_block,
            "max_shared_memory_per_block": self.shared_memory_bytes,
            "registers_per_block": self.registers_per_block,
            "l2_cache_size_bytes": self.l2_bytes,
            "thread_warp_size": self.warp_size,
        }
        return tvm.target.Target(config)

    def with_cores(self, cores: int) -> "CudaDescription":
        """The same GPU with ``cores`` multiprocessors; tensor-core rates shrink with them."""
        smaller = self.with_count("sms", cores)
        rates = {dtype: rate * cores / self.sms for dtype, rate in self.tensor_tflops.items()}
        return smaller.model_copy(update={"tensor_tflops": rates})

    def with_tf32(self) -> "CudaDescription":
        """The same GPU with products of float32 in tf32: see ``tf32``."""
        return self.model_copy(update={"tf32": True})

    def vector_lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in the widest load of one thread, 128 bits."""
        return max(1, 128 // tvm.DataType(dtype).bits)

    def peak_flops(self, dtype: str) -> float:
        """Operations a second (a multiply-add is two) over all multiprocessors, dense.

        The tensor cores' rate where the description has one for ``dtype`` and there are
        instructions that code uses, else float32's.
        """
        if self.has_tensor_rate(dtype):
            return self.tensor_tflops[dtype] * 1e12
        return 2 * self.sms * self.fp32_lanes_per_sm * self.clock_ghz * 1e9

    def has_tensor_rate(self, dtype: str) -> bool:
        """Whether products of ``dtype`` have a rate of their own that some code reaches."""
        return dtype in self.tensor_tflops and has_rate(dtype, self.arch)

    def instruction_flops(self, instruction: MatrixInstruction) -> float:
        """Operations a second over all multiprocessors that work with one instruction only."""
        return self.peak_flops(instruction.rate) * instruction.share_of_rate(self.arch)

    def bandwidth(self, working_set_bytes: float) -> float:
        """Copy bandwidth in bytes a second for data that is reused at this size."""
        return (self.l2_gbs if working_set_bytes <= self.l2_bytes else self.memory_gbs) * 1e9


def current_gpu() -> CudaDescription | None:
    """The current target when it is an NVIDIA GPU, else None."""
    return current_machine(CudaDescription)
