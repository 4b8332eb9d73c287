"""What a CPU is, in plain numbers."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tvm
from pydantic import Field, model_validator
from tvm.target import Target

from tvm_ext.configs.errors import TargetError
from tvm_ext.configs.loader import Count, Positive
from tvm_ext.hardware.cpu.features import FLAGS, VectorBits, architecture_of, vector_bits
from tvm_ext.hardware.machine import MODEL_PRECISION, MachineDescription
from tvm_ext.hardware.matrix_instructions import (
    TILE_INSTRUCTIONS,
    MatrixInstruction,
    cpu_instructions,
)
from tvm_ext.hardware.targets import current_machine
from tvm_ext.hardware.tvm_compat import llvm_codegen

# What the templates and the features were written for.
ARCHITECTURES = ("x86_64", "aarch64")

# For Intel's processors LLVM makes two halves of every vector of 512 bits, lest a few of them lower
# the clock of code that is mostly scalar: all of ours is not.
_WIDEST_BITS, _WHOLE_VECTORS = 512, "-prefer-256-bit"

# See ``code_target``.
_ROLLED_LOOPS = "x86-64-v3"

_NARROW = "bfloat16"
_NARROW_WEIGHTS = "float16"

# Products of bytes that an instruction adds to one lane.
_STEPS = 4

# Of a vector.
_BITS_OF_AVX2 = 256


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
    products: Literal["float32", "bfloat16"] = "float32"
    """What products of float32 are computed in, with sums of float32: see ``with_precision``."""
    stored_weights: Literal["float32", "float16"] = "float32"
    """What weights of matmuls of float32 are stored in, with products of float32: the same."""
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
        attributes = [*self.mattr]
        has_halves = self.vector_bits == _WIDEST_BITS and self.architecture == "x86_64"
        if has_halves and _WHOLE_VECTORS not in attributes:
            attributes.append(_WHOLE_VECTORS)
        config = {
            **self.target_options,
            "kind": "llvm",
            "mtriple": self.mtriple,
            "mcpu": self.mcpu,
            "num-cores": self.cores,
            **({"mattr": attributes} if attributes else {}),
        }
        return tvm.target.Target(config)

    def with_cores(self, cores: int) -> "CpuDescription":
        """The same CPU with ``cores`` cores at work; memory and L3 stay what they are."""
        return self.with_count("cores", cores)

    def with_threads(self, threads: int) -> "CpuDescription":
        """See ``MachineDescription``: a thread a core."""
        return self.with_cores(threads)

    def with_precision(self, precision: str) -> "CpuDescription":
        """See ``MachineDescription``: "bfloat16" where an instruction multiplies it, "float16" for
        weights alone where the CPU widens it.
        """
        if precision == MODEL_PRECISION:
            return self
        if precision == _NARROW_WEIGHTS:
            return self._with_stored_weights()
        if precision != _NARROW:
            raise TargetError(
                f"precision '{precision}' is not known; "
                f"expected '{MODEL_PRECISION}', '{_NARROW}' or '{_NARROW_WEIGHTS}': change it"
            )
        if not self.multiplies_bfloat16:
            raise TargetError(
                f"precision '{precision}' was asked for and target '{self.name}' has no "
                "instruction for its products; expected a CPU with the feature "
                "amx-bf16, avx512bf16 or bf16: leave it out"
            )
        return self.model_copy(update={"products": _NARROW})

    def _with_stored_weights(self) -> "CpuDescription":
        if not self.widens(_NARROW_WEIGHTS):
            raise TargetError(
                f"precision '{_NARROW_WEIGHTS}' was asked for and target '{self.name}' has no "
                "instruction that converts it to float32; expected a CPU with the feature f16c: "
                "leave it out"
            )
        return self.model_copy(update={"stored_weights": _NARROW_WEIGHTS})

    def widens(self, dtype: str) -> bool:
        """Whether vectors of a narrow ``dtype`` become float32 in a few instructions.

        It is int8, float16 or bfloat16; of the last it takes a shift.
        """
        needs = {"int8": "avx2", _NARROW_WEIGHTS: "f16c"}
        found = dtype not in needs or needs[dtype] in self.features
        return found or self.architecture == "aarch64"

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
        multiply_adds = instruction.k * self.vector_lanes(instruction.accumulator)
        in_vectors = multiply_adds * self.fma_units
        tiles = (row for row in TILE_INSTRUCTIONS if row.a == dtype and row.needs in self.features)
        # One starts in as many cycles as it has rows: Intel's manual, "Intel AMX".
        in_tiles = max((row.n * row.k for row in tiles), default=0)
        return 2 * max(in_vectors, in_tiles) * self.clock_ghz * 1e9 * self.cores

    def instruction(self, dtype: str) -> MatrixInstruction:
        """What sums of products of ``dtype`` become on this CPU where they are long enough."""
        return self.instructions(dtype)[0]

    def instructions(self, dtype: str) -> tuple[MatrixInstruction, ...]:
        """The same, and behind it what is left for sums of no whole number of its steps."""
        return cpu_instructions(dtype, tvm.DataType(dtype).bits, self.features)

    def tile_instruction(self, a: str, b: str) -> MatrixInstruction | None:
        """What multiplies tiles of types ``a`` and ``b``; None where the CPU has nothing."""
        rows = (row for row in TILE_INSTRUCTIONS if (row.a, row.b) == (a, b))
        return next((row for row in rows if row.needs in self.features), None)

    @property
    def dot_product_types(self) -> tuple[str, ...]:
        """Of uint8 and int8, those of which four products with int8 are added to a lane of int32 at
        once.
        """
        types = ("uint8", "int8")
        return tuple(t for t in types if any(row.k == _STEPS for row in self.instructions(t)))

    @property
    def has_dot_products(self) -> bool:
        """Whether an instruction adds four products of 8-bit integers to a lane at once."""
        return bool(self.dot_product_types)

    @property
    def multiplies_pairs_of_int16(self) -> bool:
        """Whether an instruction adds two products of int16 in each lane of the longest vectors,
        where none adds four of bytes.
        """
        pairs = self.instruction("int16").k == _STEPS // 2 and self.vector_bits == _BITS_OF_AVX2
        return pairs and not self.has_dot_products

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether an instruction adds several products of bfloat16 to a sum of float32."""
        has_tiles = self.tile_instruction(_NARROW, _NARROW) is not None
        return has_tiles or self.instruction(_NARROW).k > 1

    def bandwidth(self, working_set_bytes: float) -> float:
        """Copy bandwidth in bytes a second over all cores for data that is reused at this size."""
        if working_set_bytes <= self.l2_bytes * self.cores:
            return self.core_l2_gbs * self.cores * 1e9
        if working_set_bytes <= self.l3_bytes:
            return self.core_l3_gbs * self.cores * 1e9
        return min(self.memory_gbs, self.core_memory_gbs * self.cores) * 1e9


def current_cpu() -> CpuDescription | None:
    """The current target when it is a CPU, else None: what passes for CPUs ask before they act."""
    return current_machine(CpuDescription)


# What a CPU's name and attributes stand for.


@functools.cache
def llvm_features(mtriple: str, mcpu: str, mattr: tuple[str, ...] = ()) -> frozenset[str]:
    """The instruction features LLVM may use for this triple, CPU and list of ``+f`` and ``-f``.

    None for architectures other than x86_64 and aarch64.

    Raises :class:`TargetError` for a triple, CPU or feature that LLVM does not know. LLVM itself
    would only warn, and use a generic CPU, or crash.
    """
    architecture = architecture_of(mtriple)
    if architecture not in {str(name) for name in llvm_codegen.llvm_get_targets()}:
        raise TargetError(
            f"LLVM has no architecture '{architecture}' (triple '{mtriple}'); "
            f"expected one like 'x86_64-linux-gnu' or 'aarch64-linux-gnu'"
        )
    if not llvm_codegen.llvm_is_valid_cpu(mcpu, mtriple):
        raise TargetError(
            f"LLVM has no CPU '{mcpu}' for triple '{mtriple}'; expected a name that "
            f"`llc -mtriple={mtriple} -mcpu=help` lists, such as 'generic'"
        )
    target = Target({"kind": "llvm", "mtriple": mtriple, "mcpu": mcpu, "mattr": list(mattr)})
    present = {str(feature) for feature in llvm_codegen.llvm_get_cpu_features(target)}
    _check_mattr(mattr, present)
    known = {feature for group in FLAGS.get(architecture, {}).values() for feature in group}
    return frozenset(present & known)


def code_target(target: Target) -> Target:
    """``target`` as LLVM is told it, which keeps tiles of sums in registers.

    LLVM writes out several steps of a loop for processors whose model says that they keep long
    loops at hand: AMD's, and Intel's of late. Sixteen vector registers do not hold the operands of
    several steps beside a tile's sums, and what does not fit goes through memory. The model of
    x86-64-v3 leaves such loops as they are. Measured on Zen 3, GFLOP/s of a product by the tile's
    rows and columns: 12 x 8 from 52 to 84, 7 x 8 from 66 to 75, 6 x 16 from 89 to 95.

    With the 32 registers of AVX-512 nothing goes through memory.
    """
    names = {key: target.attrs.get(key) for key in ("mtriple", "mcpu", "mattr")}
    if target.kind.name != "llvm" or not names["mtriple"] or not names["mcpu"]:
        return target
    mtriple, mattr = str(names["mtriple"]), tuple(str(entry) for entry in names["mattr"] or ())
    if architecture_of(mtriple) != "x86_64":
        return target
    features = llvm_features(mtriple, str(names["mcpu"]), mattr)
    known = llvm_features(mtriple, _ROLLED_LOOPS)
    if not known <= features or "avx512f" in features:
        return target
    more = [f"+{feature}" for feature in sorted(features - known)]
    told = {"mcpu": _ROLLED_LOOPS, "mattr": list(dict.fromkeys([*mattr, *more]))}
    return Target({**target.export(), **told})


def _check_mattr(mattr: tuple[str, ...], present: set[str]) -> None:
    for attribute in mattr:
        if attribute[:1] not in ("+", "-"):
            raise TargetError(f"mattr entry '{attribute}' has no sign; expected '+{attribute}'")
        if attribute.startswith("+") and attribute[1:] not in present:
            raise TargetError(
                f"LLVM has no feature '{attribute[1:]}' for this CPU; "
                f"expected names like '+avx512vnni' or '+dotprod' in mattr"
            )
