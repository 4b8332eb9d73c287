"""What a whole model costs on a mesh, kernel by kernel and placed. Everything is modelled."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_ext.api import TargetSource
from tvm_ext.compiler.stages import LoweredModel, ModelSource, Phases, lower_model
from tvm_ext.compiler.tuned_kernels import RecordsSource, record_folders
from tvm_ext.errors import TargetError
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.passes.pipeline import PipelineSource, build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.tuning.logs.record_lookup import RecordLookup
from tvm_ext.wafer.dataflow import Dataflow, DataflowTensor, dataflow
from tvm_ext.wafer.kernel_cost import KernelCost, KernelCosts
from tvm_ext.wafer.placement import Placement, in_turn, pipelined


@dataclass(frozen=True)
class ModelCost:
    """A model on a mesh. All times are modelled.

    Attributes
    ----------
    model : str
        Its name.
    mesh : WaferDescription
        The machine.
    opt_level : str
        Which passes ran.
    kernels : tuple[KernelCost, ...]
        Each once, the most expensive first, those without a cost last.
    flow : Dataflow
        The calls, in the order of a run.
    placements : tuple[Placement, ...]
        The whole wafer in turn, and, for more than one call, pipelined regions.
    notes : tuple[str, ...]
        What to know of the numbers, a line each.
    """

    model: str
    mesh: WaferDescription
    opt_level: str
    kernels: tuple[KernelCost, ...]
    flow: Dataflow
    placements: tuple[Placement, ...]
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[KernelCost, ...]:
        """Kernels that cannot run on the mesh as they are scheduled."""
        return tuple(kernel for kernel in self.kernels if kernel.refusal)

    @property
    def chosen(self) -> Placement:
        """The placement with the shortest run among those that fit; the first if none does."""
        return min(self.placements, key=lambda item: (bool(item.refusal), item.cycles))

    @property
    def host_cycles(self) -> tuple[float, float]:
        """Cycles of one channel of the host link for the inputs and for the outputs of a run.

        They are in no other figure.
        """
        words = [_words(found, self.mesh) for found in (self.flow.inputs, self.flow.outputs)]
        link = self.mesh.io_words_per_cycle, self.mesh.io_return_words_per_cycle
        return words[0] / link[0], words[1] / link[1]


def model_cost(
    model: ModelSource,
    target: TargetSource = "wse2",
    records: RecordsSource = (),
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    opt_level: int | str = "O3",
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    pipeline: PipelineSource | None = None,
) -> ModelCost:
    """The cost of an ONNX model on a mesh.

    Parameters
    ----------
    model, input_shapes, opt_level, disabled_passes, pass_config, pipeline
        As for ``compile``.
    target
        A mesh: a preset's name, a TOML file, or a description.
    records
        Folders that ``tune`` wrote for this mesh; without one, each kernel gets its template's own
        schedule.

    Raises
    ------
    TvmExtError
        As ``compile``; TargetError for a target that is no mesh.
    """
    mesh = mesh_target(target)
    passes = build_pipeline(opt_level, disabled_passes, pass_config, pipeline)
    with compiling_for(mesh):
        lowered = lower_model(model, input_shapes, passes, PassRunner(), Phases())
        return lowered_cost(lowered, mesh, records, passes.opt_level)


def lowered_cost(
    lowered: LoweredModel, mesh: WaferDescription, records: RecordsSource, opt_level: str
) -> ModelCost:
    """The same for a model that was lowered for ``mesh``, inside of ``compiling_for``."""
    flow = dataflow(lowered.kernels)
    origins: dict[str, list[str]] = {}
    for call in flow.calls:
        origins.setdefault(call.kernel, []).append(" + ".join(call.origins))
    folders = record_folders(records)
    lookup = RecordLookup(folders, mesh, origins) if folders else None
    costs = KernelCosts(lowered.kernels, origins, mesh, lookup)
    kernels = sorted((costs.on_mesh(name) for name in origins), key=lambda item: -item.cycles)
    placements = [in_turn(flow, costs, mesh)]
    pipeline = pipelined(flow, costs, mesh, placements[0])
    if pipeline is not None:
        placements.append(pipeline)
    problems = lookup.problems if lookup is not None else []
    return ModelCost(
        lowered.imported.name,
        mesh,
        opt_level,
        tuple(kernels),
        flow,
        tuple(placements),
        tuple(str(problem) for problem in problems),
    )


def mesh_target(target: TargetSource) -> WaferDescription:
    """A target's description. Raises TargetError if it is no mesh."""
    mesh = resolve_target(target)
    if not isinstance(mesh, WaferDescription):
        raise TargetError(
            f"target '{mesh.name}' is not a mesh; expected a mesh of processing elements, such as "
            "'wse2': see 'tvm-ext targets list'"
        )
    return mesh


def _words(tensors: Sequence[DataflowTensor], mesh: WaferDescription) -> float:
    sizes = {one.key: one.bytes for one in tensors}
    return sum(sizes.values()) / mesh.word_bytes
