"""What a machine is: read-only descriptions in plain numbers, of a CPU and of an NVIDIA GPU here.

A description is the content of a file in configs/targets, a preset or a user's own, or what
``tvm_ext.hardware.cpu.host`` finds out about this machine. Units are part of each name: ``_bytes``,
``_bits``, ``_ghz``, ``_gbs`` (1e9 bytes a second), ``_us`` (microseconds). The description of a
mesh is in ``tvm_ext.hardware.wafer.description``.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import tvm
from pydantic import Field, model_validator

from tvm_ext.configs.errors import TargetError
from tvm_ext.configs.loader import Count, Positive
from tvm_ext.hardware.cpu.features import (
    VectorBits,
    architecture_of,
    llvm_features,
    vector_bits,
)
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.matrix_instructions import MatrixInstruction, cpu_instruction, has_rate

# What the templates and the features were written for.
ARCHITECTURES = ("x86_64", "aarch64")


class CpuDescription(MachineDescription):
    """A CPU. Caches L1 and L2 are per core, L3 and memory are shared by all cores.

    ``features`` follows from ``mtriple``, ``mcpu`` and ``mattr``, as LLVM understands them.
    """

    kind: Literal["cpu"]
    name: str
    summary: str
    mtriple: str
    """LLVM target triple, such as "x86_64-linux-gnu"."""
    mcpu: str
    """LLVM CPU name, such as "x86-64-v3"."""
    mattr: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """LLVM features on top of (+) or taken from (-) what ``mcpu`` has: "+avx512vnni"."""
    cores: Count
    clock_ghz: Positive
    """What all cores sustain with full vectors, not the short boost of one."""
    vector_bits: VectorBits
    fma_units: Positive
    """Multiply-add instructions of ``vector_bits`` a core starts in a cycle."""
    l1d_bytes: Count
    l2_bytes: Count
    l3_bytes: Annotated[int, Field(ge=0)]
    memory_gbs: Positive
    """Copy bandwidth of main memory with all cores at work, read and written bytes together."""
    core_memory_gbs: Positive
    """The share of it that one core alone reaches."""
    core_l2_gbs: Positive
    """Copy bandwidth of one core within its L2."""
    core_l3_gbs: Positive
    """Copy bandwidth of one core within L3."""
    kernel_overhead_us: Positive
    """Time to call one kernel that does nothing."""
    parallel_overhead_us: Positive
    """Time to hand a kernel to all threads and wait for them."""
    target_options: dict[str, Any] = Field(default_factory=dict)
    """Other attributes for the TVM target, such as {"fast-math" = true}."""

    @model_validator(mode="after")
    def _check(self) -> "CpuDescription":
        if not self.core_l2_gbs >= self.core_l3_gbs >= self.core_memory_gbs:
            raise ValueError(
                f"core_l2_gbs {self.core_l2_gbs}, core_l3_gbs {self.core_l3_gbs} and "
                f"core_memory_gbs {self.core_memory_gbs} grow; expected each at most the one before"
            )
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"mtriple '{self.mtriple}' is of architecture '{self.architecture}'; expected one "
                f"of {', '.join(ARCHITECTURES)}: change the triple"
            )
        try:
            features = llvm_features(self.mtriple, self.mcpu, self.mattr)
        except TargetError as error:
            raise ValueError(str(error)) from error
        widest = vector_bits(self.architecture, features)
        if self.vector_bits > widest and "sve" not in features:
            raise ValueError(
                f"vector_bits is {self.vector_bits}, but the features of '{self.mcpu}' give "
                f"{widest}; expected at most that, or more features in mattr"
            )
        self.tvm_target()
        return self

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def features(self) -> tuple[str, ...]:
        """LLVM names of the instruction features code for this CPU may use, sorted: "avx512f"."""
        return tuple(sorted(llvm_features(self.mtriple, self.mcpu, self.mattr)))

    @property
    def required_features(self) -> tuple[str, ...]:
        """What a machine needs to run a program built for this target: all of ``features``."""
        return self.features

    @property
    def architecture(self) -> str:
        """ "x86_64" or "aarch64", from the triple."""
        return architecture_of(self.mtriple)

    def tvm_target(self) -> tvm.target.Target:
        """The TVM target that builds code for this CPU. Raises ValueError for a wrong option."""
        config = {
            **self.target_options,
            "kind": "llvm",
            "mtriple": self.mtriple,
            "mcpu": self.mcpu,
            "num-cores": self.cores,
            **({"mattr": list(self.mattr)} if self.mattr else {}),
        }
        return tvm.target.Target(config)

    def with_cores(self, cores: int) -> "CpuDescription":
        """The same CPU with ``cores`` cores at work; memory and L3 stay what they are."""
        return _with_count(self, "cores", cores)

    def fastest_seconds(self, seconds_on: Callable[[MachineDescription], float]) -> float:
        """The better of one core and of all cores, whose threads are woken first."""
        if self.cores == 1:
            return seconds_on(self)
        parallel = seconds_on(self) + self.parallel_overhead_us * 1e-6
        return min(seconds_on(self.with_cores(1)), parallel)

    def vector_lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` that one vector register holds."""
        return max(1, self.vector_bits // tvm.DataType(dtype).bits)

    def peak_flops(self, dtype: str) -> float:
        """Operations a second (a multiply-add is two) over all cores.

        They are those of the instruction that sums of products of ``dtype`` become: see
        ``matrix_instructions``.
        """
        instruction = self.instruction(dtype)
        multiply_adds = instruction.m * instruction.k * self.vector_lanes(instruction.a)
        return 2 * multiply_adds * self.fma_units * self.clock_ghz * 1e9 * self.cores

    def instruction(self, dtype: str) -> MatrixInstruction:
        """What sums of products of ``dtype`` become on this CPU."""
        return cpu_instruction(dtype, tvm.DataType(dtype).bits, self.features)

    def bandwidth(self, working_set_bytes: float) -> float:
        """Copy bandwidth in bytes a second over all cores for data that is reused at this size."""
        if working_set_bytes <= self.l2_bytes * self.cores:
            return self.core_l2_gbs * self.cores * 1e9
        if working_set_bytes <= self.l3_bytes:
            return self.core_l3_gbs * self.cores * 1e9
        return min(self.memory_gbs, self.core_memory_gbs * self.cores) * 1e9


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

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def required_features(self) -> tuple[str, ...]:
        """CPU features a program for this GPU needs: none beyond the host code's baseline."""
        return ()

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
        smaller = _with_count(self, "sms", cores)
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


Processor = MachineDescription
"""What runs a program kernel by kernel."""

Description = MachineDescription


def _with_count(description: Any, field: str, count: int) -> Any:
    if count < 1:
        raise TargetError(
            f"'{description.name}' with {count} cores was asked for; expected 1 or more"
        )
    return description.model_copy(update={field: count})
