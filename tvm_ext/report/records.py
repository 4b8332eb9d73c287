"""The parts of a compile report: plain records of what a compilation did, and why.

Records hold no TVM objects, only JSON values.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tvm_ext.configs.decision import Decision
from tvm_ext.report.formulas import in_words, is_so
from tvm_ext.report.units import flops_scale, format_bytes

# ONNX operators that multiply matrices: the work that other operators are fused into.
_ANCHOR_OPERATORS = (
    *("Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv"),
    *("Einsum", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"),
)
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel: the kernel's name and the names of the original nodes."""

    kernel: str
    origins: tuple[str, ...]

    @property
    def where(self) -> str:
        """The origins in one line."""
        return " + ".join(self.origins)


class NamedKernel(Protocol):
    """A kernel with the nodes that each of its calls computes, where these are known."""

    @property
    def name(self) -> str: ...
    @property
    def origins(self) -> Sequence[str]: ...


def computes(kernel: NamedKernel) -> str:
    """The nodes of a kernel's first call, or its own name where none is known."""
    return kernel.origins[0] if kernel.origins else kernel.name


@dataclass(frozen=True)
class HostRecord:
    """A node that the host computes around the compiled code.

    Attributes
    ----------
    operator, node : str
        The ONNX operator, with its domain outside of the default one, and the node's name.
    reason : str
        Why it is not compiled.
    """

    operator: str
    node: str
    reason: str


# Phases with a meaning of their own. Loading the compiler, of the first compilation of a process
# most, and reading the target's description; looking for a program that an earlier compilation
# left, and leaving one; making code, which a program from there needs none of.
SET_UP, FROM_CACHE, CODE = "set up", "cache", "build"


@dataclass(frozen=True)
class PhaseRecord:
    """Wall time, in seconds, of one phase: import, graph passes, ..., build."""

    name: str
    seconds: float


@dataclass(frozen=True)
class ModuleCounts:
    """A module in numbers.

    Attributes
    ----------
    operators : int
        Calls of Relax operators, those of a branch or a loop's body once.
    kernels : int
        Kernels, whatever calls them.
    intermediate_bytes : int
        Bytes of all tensors that bindings compute; a size that a run decides counts as 1.
    """

    operators: int = 0
    kernels: int = 0
    intermediate_bytes: int = 0


@dataclass(frozen=True)
class PassRecord:
    """One pass of the pipeline.

    Attributes
    ----------
    name, level : str
        The pass, and its level: "graph", "schedule", "tile", "memory" or "target".
    seconds : float
        Wall time.
    changed : bool
        Whether the module differs after the pass.
    applied, refused : int
        Number of matches taken, and of near matches left alone.
    skipped : str
        Why the pass did not run, for example "disabled by --disable-pass"; "" if it ran.
    decisions : list[Decision]
        The matches, in the order in which the pass met them.
    after : ModuleCounts, optional
        The module behind the pass; None in reports that were saved before it was counted.
    """

    name: str
    level: str
    seconds: float
    changed: bool
    applied: int
    refused: int
    skipped: str = ""
    decisions: list[Decision] = field(default_factory=list)
    after: ModuleCounts | None = None


@dataclass(frozen=True)
class GraphRecord:
    """Operator counts along the road from ONNX nodes to kernels.

    Attributes
    ----------
    onnx_nodes, prepared_nodes : dict[str, int]
        Operator to number of nodes, in the model as given and after its preparation at ONNX level.
    relax_before, relax_after : dict[str, int]
        Operator to number of calls, before and after the graph passes.
    kernels_before_fusion, kernels : int
        Kernel calls of one run, before and after fusion.
    batch_norms_left : int
        Batch normalisations that were not folded away.
    may_divide_by_zero : bool
        Whether a kernel divides integers by elements of a tensor or by sizes that can be 0.
    sizes_from_data : bool
        Whether sizes follow from elements of a tensor, not from sizes of the inputs alone.
    """

    onnx_nodes: dict[str, int] = field(default_factory=dict)
    prepared_nodes: dict[str, int] = field(default_factory=dict)
    relax_before: dict[str, int] = field(default_factory=dict)
    relax_after: dict[str, int] = field(default_factory=dict)
    kernels_before_fusion: int = 0
    kernels: int = 0
    batch_norms_left: int = 0
    may_divide_by_zero: bool = False
    sizes_from_data: bool = False

    @property
    def has_control_flow(self) -> bool:
        """Whether the prepared model has branches or loops."""
        return not _CONTROL_FLOW.isdisjoint(self.prepared_nodes)

    @property
    def anchors(self) -> int:
        """Number of convolutions and matrix multiplications in the prepared model."""
        nodes = self.prepared_nodes or self.onnx_nodes
        return sum(nodes.get(operator, 0) for operator in _ANCHOR_OPERATORS)

    @property
    def kernels_per_anchor(self) -> float | None:
        """Kernel calls per convolution or matmul, None without any; 1 is as fused as can be."""
        return self.kernels / self.anchors if self.anchors else None


@dataclass(frozen=True)
class VersionRecord:
    """One of several ways in which a kernel's code does the same.

    Attributes
    ----------
    name : str
        What sets it apart from the others: "vectors of 64, threads".
    condition : str
        When it runs: a formula (`formulas`) of the kernel's sizes.
    """

    name: str
    condition: str


@dataclass(frozen=True)
class SymbolicRecord:
    """What one call does of a kernel whose sizes a run decides.

    Attributes
    ----------
    sizes : dict[str, list[int]]
        The sizes, by name: the number of the argument that has it and its axis there, or -1 where
        the argument is the number itself.
    flops, bytes : str
        Formulas (`formulas`) of these sizes; empty where they do not decide it.
    versions : list[list[VersionRecord]]
        The choices that a call makes by its sizes, each with the versions that it chooses from.
    """

    sizes: dict[str, list[int]]
    flops: str
    bytes: str
    versions: list[list[VersionRecord]] = field(default_factory=list)

    def at(self, arguments: Sequence[tuple[int, ...] | int | None]) -> dict[str, int]:
        """The sizes of a call with arguments of these shapes, or these numbers."""
        found = {}
        for name, (place, axis) in self.sizes.items():
            given = arguments[place] if place < len(arguments) else None
            if isinstance(given, tuple) and 0 <= axis < len(given):
                found[name] = given[axis]
            elif isinstance(given, int) and axis < 0:
                found[name] = given
        return found

    def versions_at(self, sizes: Mapping[str, int]) -> tuple[tuple[int, str], ...]:
        """The version that a call of these sizes takes of each choice, with the choice's number; of
        choices that it does not come to, none.
        """
        return tuple(
            (number, version.name)
            for number, choice in enumerate(self.versions)
            for version in choice
            if is_so(version.condition, sizes)
        )


@dataclass(frozen=True)
class RunWork:
    """What all calls of one run do, or those of one kernel, where a run decides the sizes.

    Attributes
    ----------
    flops, bytes, estimated_seconds : float
        Floating-point operations, bytes moved and modelled time at nominal sizes.
    flops_formula, bytes_formula : str
        The first two for any sizes: formulas (`formulas`) of the model's dimensions.
    """

    flops: float
    bytes: float
    estimated_seconds: float
    flops_formula: str
    bytes_formula: str

    def figure(self, what: str) -> str:
        """The ``flops`` or ``bytes`` with their unit."""
        return flops_scale(self.flops)(self.flops) if what == "flops" else format_bytes(self.bytes)

    def formula(self, what: str, sizes: Mapping[str, int]) -> str:
        """The same for any sizes, for a reader: terms that are large at ``sizes`` come first."""
        if what == "flops":
            return f"{in_words(self.flops_formula, sizes)} FLOP"
        return f"{in_words(self.bytes_formula, sizes)} bytes"


@dataclass(frozen=True)
class KernelRecord:
    """One kernel, which a run calls ``calls`` times.

    Attributes
    ----------
    name : str
        Name of the PrimFunc.
    calls : int
        Calls in one run.
    origins : list[str]
        One entry a call: names of the ONNX nodes it computes, for example "conv1 + relu1".
    schedule, source : str
        The schedule, for example "register tile", and where it came from: "record", "template",
        "tvm rule" or "generic".
    reason : str
        Why this schedule was taken.
    refusals : list[str]
        What was tried before it, and why each was not taken.
    flops, bytes : float or None
        Floating-point operations, and bytes moved, of one call; None where a run decides its sizes.
    estimated_seconds : float or None
        Modelled time of one call, None as for those. Never a measured one.
    tuned : str
        "hit" when a tuned record was used, "miss" when records were given and none fits.
    miss : str
        Why none fits.
    dtype : str
        Element type of the result; empty in reports that were saved before it was noted.
    symbolic : SymbolicRecord or None
        What a call does for any sizes, and which version of the code; None where all are known.
    nominal : RunWork or None
        What the calls of one run do where a run decides the sizes; None where data do, or branches.
    """

    name: str
    calls: int
    origins: list[str]
    schedule: str
    source: str
    reason: str
    refusals: list[str]
    flops: float | None
    bytes: float | None
    estimated_seconds: float | None
    tuned: str = ""
    miss: str = ""
    dtype: str = ""
    symbolic: SymbolicRecord | None = None
    nominal: RunWork | None = None

    @property
    def schedule_and_source(self) -> str:
        """The schedule, and where it came from unless that is a template, as nearly all do."""
        return self.schedule if self.source == "template" else f"{self.schedule} ({self.source})"

    @property
    def total_seconds(self) -> float | None:
        """Modelled time of all calls of one run, in seconds; None where it is not known."""
        return None if self.estimated_seconds is None else self.calls * self.estimated_seconds

    def of_call(self, figure: str) -> float | None:
        """``flops``, ``bytes`` or ``estimated_seconds`` of one call, at nominal sizes where a run
        decides these: the mean of its calls. None where it is not known.
        """
        known: float | None = getattr(self, figure)
        if known is not None or self.nominal is None:
            return known
        return float(getattr(self.nominal, figure)) / max(self.calls, 1)

    @property
    def seconds_of_run(self) -> float | None:
        """As ``total_seconds``, at nominal sizes where a run decides these."""
        seconds = self.of_call("estimated_seconds")
        return None if seconds is None else self.calls * seconds


# The program's function that takes memory for its results behind its inputs.
WITH_OUT_PARAMS = "main_with_out_params"

_SPECIALIZED = re.compile(r"_specialized_\d+$")
_MACHINE_CODE = "_compiled"


def specialized_name(name: str, number: int) -> str:
    """What a function of the specialised program ``number`` is called; 0 is that for any sizes."""
    if not number:
        return name
    program = name.removesuffix(_MACHINE_CODE)
    if program != name and runs_a_model(program):
        return as_machine_code(specialized_name(program, number))
    return f"{name}_specialized_{number}"


def runs_a_model(name: str) -> bool:
    """Whether a program's function is what a run calls."""
    return _SPECIALIZED.sub("", name) in ("main", WITH_OUT_PARAMS)


# A function of each program for a CPU that computes nothing. A virtual machine keeps the results of
# its last call until the next one, and a call of this one lets go of them.
RELEASE_RESULTS = "tvm_ext_release_results"


def as_machine_code(name: str) -> str:
    """What a function of the program is called as machine code, where it is that as well."""
    return f"{name}{_MACHINE_CODE}"


@dataclass(frozen=True)
class MemoryLimitRecord:
    """What was done to a program so that its values fit into a memory limit.

    Attributes
    ----------
    limit_bytes : int
        The limit, of the planned peak.
    is_asked : bool
        Whether it was given for this model, and is not the usual one of the machine.
    unlimited_bytes : int
        The planned peak of the program as it was.
    bound_bytes : int
        What no order of its calls, and no call that runs again, can go below: the call that needs
        most needs as much alone.
    calls_again : int
        Calls that run a second time, to compute a value again.
    is_reordered : bool
        Whether calls run in another order.
    predicted_slowdown : float
        Share of the modelled time of a run that the calls take which run again.
    """

    limit_bytes: int
    is_asked: bool = True
    unlimited_bytes: int = 0
    bound_bytes: int = 0
    calls_again: int = 0
    is_reordered: bool = False
    predicted_slowdown: float = 0.0


@dataclass(frozen=True)
class MemoryRecord:
    """Memory of one run, in bytes.

    Attributes
    ----------
    planned_peak_bytes, unplanned_bytes : int or None
        Peak of the intermediate buffers as planned, and their sum if none were reused, both with
        the arrays that kernels allocate for themselves; of sizes that have a range, the largest.
        None where a run decides sizes without a limit.
    weights_bytes : int
        Constants of the compiled model.
    dynamic : bool
        Whether some buffer's size is known only at run time.
    lower_bound_bytes : int or None
        What no plan can be below: as the planned peak, with the largest sum of what is alive at a
        time in place of each arena. None where there are no buffers, too.
    planner : str
        How the offsets in the arena were found.
    weights_read_bytes : int or None
        Constants that every run reads whole, which tables of rows to choose from are not. None in
        reports that were saved before they were counted.
    limit : MemoryLimitRecord or None
        What a memory limit changed; None where none was given and the program is far below the
        usual one.
    copied_outputs : list[str] or None
        Outputs that a run on a CPU copies, because their memory is an input's, a weight's or
        another output's. None where all are, and the inputs as well: of programs that may write
        to these, of those whose storage a user's pass changed, and of older ones.
    kernel_bytes, kernel_thread_bytes : int or None
        What kernels for a CPU allocate for themselves and TVM keeps after the run: of the thread
        that runs the program, and of each further one. Of symbolic sizes, nominal ones. None for
        nothing, and where it was not counted.
    workspace_bytes : int or None
        The part of the planned peak, of the unplanned bytes and of the lower bound that kernels for
        a CPU allocate for themselves, on all threads that the program is compiled for. None for
        nothing, and in reports that were saved before it was a part of them.
    program_bytes : int or None
        Tables of the virtual machine: functions, instructions, and what describes each constant.
        None where the program was not loaded when it was compiled, as that for another machine.
    """

    planned_peak_bytes: int | None = 0
    unplanned_bytes: int | None = 0
    weights_bytes: int = 0
    dynamic: bool = False
    copied_outputs: list[str] | None = None
    out_params: list[str] = field(default_factory=list)
    lower_bound_bytes: int | None = None
    planner: str = ""
    weights_read_bytes: int | None = None
    limit: MemoryLimitRecord | None = None
    kernel_bytes: int | None = None
    kernel_thread_bytes: int | None = None
    workspace_bytes: int | None = None
    program_bytes: int | None = None

    @property
    def saved_share(self) -> float:
        """Share (0 to 1) of the unplanned bytes that planning saves."""
        if not self.unplanned_bytes or self.planned_peak_bytes is None:
            return 0.0
        return max(0.0, 1.0 - self.planned_peak_bytes / self.unplanned_bytes)

    @property
    def values_bytes(self) -> int | None:
        """The planned peak without what kernels allocate for themselves."""
        return self._of_values(self.planned_peak_bytes)

    @property
    def unplanned_values_bytes(self) -> int | None:
        """The unplanned bytes without the same."""
        return self._of_values(self.unplanned_bytes)

    def _of_values(self, nbytes: int | None) -> int | None:
        return None if nbytes is None else nbytes - (self.workspace_bytes or 0)

    def with_arrays(self, nbytes: int) -> "MemoryRecord":
        """The same with bytes that kernels allocate for themselves, beside all values.

        TVM keeps them apart from the arena, so that nothing else is in them between their calls.
        """
        if not nbytes:
            return self
        planned, unplanned, bound = (
            None if figure is None else figure + nbytes
            for figure in (self.planned_peak_bytes, self.unplanned_bytes, self.lower_bound_bytes)
        )
        return replace(
            self,
            planned_peak_bytes=planned,
            unplanned_bytes=unplanned,
            lower_bound_bytes=bound,
            workspace_bytes=nbytes,
        )

    def without_bounds(self) -> "MemoryRecord":
        """The same without the figures of buffers, where these count some as if they were small."""
        if not self.dynamic:
            return self
        return replace(
            self,
            planned_peak_bytes=None,
            unplanned_bytes=None,
            lower_bound_bytes=None,
            workspace_bytes=None,
        )


@dataclass(frozen=True)
class SizesRecord:
    """Figures of one run, of a program whose sizes a run decides, at nominal ones.

    Attributes
    ----------
    sizes : dict[str, int]
        The sizes, by name: a batch of one, images of 224 pixels, and the like.
    memory_bytes : int or None
        Bytes of the intermediate buffers as planned; None where they depend on data.
    memory_formula : str
        The same for any sizes; empty where it is long.
    flops, estimated_seconds : float or None
        Floating-point operations, and modelled time; None where they depend on data.
    work : RunWork or None
        These and the bytes moved, with formulas for any sizes; None where they depend on data.
    """

    sizes: dict[str, int]
    memory_bytes: int | None
    memory_formula: str
    flops: float | None
    estimated_seconds: float | None
    work: RunWork | None = None

    @property
    def where(self) -> str:
        """The sizes in words."""
        return "at " + ", ".join(f"{name}={size:,}" for name, size in self.sizes.items())


@dataclass(frozen=True)
class NodePrecision:
    """In which type the product of an ONNX node is computed.

    Attributes
    ----------
    name, dtype : str
        Of the node, and of its operands: "bfloat16" or "float32".
    reason : str
        Why it stayed wide; empty where it did not.
    bound : float or None
        What a narrow product alone is expected to change of an output at most, relative to the
        output's largest magnitude, of inputs like the samples; None where that is not known.
    """

    name: str
    dtype: str
    reason: str
    bound: float | None


@dataclass(frozen=True)
class TensorRecord:
    """An input or output of the model of a session's program: name, dtype and shape."""

    name: str
    dtype: str
    shape: list[int | str]


@dataclass(frozen=True)
class StateRecord:
    """What a session's program does otherwise than the model's own.

    Attributes
    ----------
    inputs : list[str]
        The names of the inputs whose memory keeps the state.
    copied : list[str]
        The names of those whose rows each run copies, as something else than attention reads them.
    last_position : list[str]
        The names of the outputs that are computed for the last position only.
    model_inputs, model_outputs : list[TensorRecord]
        What the model itself has.
    """

    inputs: list[str]
    copied: list[str]
    last_position: list[str]
    model_inputs: list[TensorRecord]
    model_outputs: list[TensorRecord]


@dataclass(frozen=True)
class PrecisionRecord:
    """What ``precision="auto"`` chose.

    Attributes
    ----------
    max_error, bound, measured : float
        How much outputs may differ from those of float32, relative to their largest magnitude; are
        expected to at most, of inputs like the samples; and do on the samples.
    samples : int
        Inputs that errors were measured on.
    reason : str
        Why no product may be narrow; empty where some may.
    nodes : list[NodePrecision]
        The products that may be narrow, in the order of the model.
    """

    max_error: float
    bound: float
    measured: float
    samples: int
    reason: str
    nodes: list[NodePrecision]

    @property
    def narrow(self) -> list[NodePrecision]:
        """The products that are narrow."""
        return [node for node in self.nodes if not node.reason]

    @property
    def figure(self) -> str:
        """What was chosen, in words."""
        if not self.nodes:
            return f"float32: {self.reason or 'MixedPrecision made no product narrow'}"
        return (
            f"{len(self.narrow):,} of {len(self.nodes):,} products in bfloat16, "
            f"error at most {self.bound:.1e} ({self.measured:.1e} on samples)"
        )


@dataclass(frozen=True)
class MicroBatchRecord:
    """How a batch is cut into micro-batches, each of which one thread takes through the program.

    Attributes
    ----------
    dimension : str
        The batch, whose items are computed one by one.
    items : float
        How many make a micro-batch at nominal sizes, at least: so many that their own arrays are
        read and written four times as much as the weights, and that they take half a millisecond
        and ten times as long as the calls of kernels.
    item_elements : int
        Elements of the inputs of one item, at nominal sizes.
    """

    dimension: str
    items: float
    item_elements: int

    def items_for(self, item_elements: int) -> int:
        """The items of a micro-batch, a power of two, where one has so many elements."""
        wanted = self.items * self.item_elements / max(item_elements, 1)
        return 1 << max(0, math.ceil(math.log2(max(wanted, 1.0))))


@dataclass(frozen=True)
class DeviceRecord:
    """What a program for a GPU holds.

    Attributes
    ----------
    arch : str
        What its code was made for: "sm_90a".
    code : str
        "cubin" (machine code), "fatbin" (machine code, and PTX for later GPUs), or "source", which
        is compiled where the program runs.
    compiler : str
        What made the device code, such as "nvcc 13.0"; empty for source.
    graphs : int
        CUDA graphs that a run launches in place of single kernels.
    graph_kernels : int
        Kernel calls inside of them.
    no_graphs : str
        Why there is none.
    """

    arch: str
    code: str
    compiler: str = ""
    graphs: int = 0
    graph_kernels: int = 0
    no_graphs: str = ""

    @property
    def code_figure(self) -> str:
        """The code in words."""
        words = {
            "cubin": f"machine code for {self.arch}",
            "fatbin": f"machine code for {self.arch}, PTX for later GPUs",
        }
        figure = words.get(self.code, f"CUDA source for {self.arch}, compiled where it runs")
        return f"{figure}, by {self.compiler}" if self.compiler else figure

    @property
    def graph_figure(self) -> str:
        """The graphs in words."""
        if self.graphs:
            return f"{self.graphs:,}, with {self.graph_kernels:,} kernel calls"
        return f"none: {self.no_graphs}" if self.no_graphs else "none"
