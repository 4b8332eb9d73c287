"""The backend for CPUs, whose code LLVM makes."""

from collections.abc import Sequence

from tvm import tirx

from tvm_ext.compiler.backend import Programs
from tvm_ext.compiler.build import cpu_program
from tvm_ext.compiler.tuned_kernels import shipped_name
from tvm_ext.configs.errors import TuningError
from tvm_ext.hardware.backend import Backend
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import cpu_of_tvm_target, host_description
from tvm_ext.mlir.tuned_template import MlirCode, MlirLoops
from tvm_ext.polyhedral.cpu_loop_nest import CpuLoopNest
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tir_schedules.cpu.amx_tile import AmxTile
from tvm_ext.tir_schedules.cpu.attention.attention import CpuAttention
from tvm_ext.tir_schedules.cpu.batch_loop import BatchLoop
from tvm_ext.tir_schedules.cpu.block_integer_matmul import BlockIntegerMatmul
from tvm_ext.tir_schedules.cpu.blockwise import Blockwise
from tvm_ext.tir_schedules.cpu.depthwise_convolution import CpuDepthwiseConvolution
from tvm_ext.tir_schedules.cpu.dequantize_matmul import DequantizeMatmul
from tvm_ext.tir_schedules.cpu.dot_product_tile import DotProductTile
from tvm_ext.tir_schedules.cpu.elementwise import CpuElementwise, CpuTranspose
from tvm_ext.tir_schedules.cpu.few_row_tile import FewRowTile
from tvm_ext.tir_schedules.cpu.masked_tails import has_masked_memory, with_masked_tails
from tvm_ext.tir_schedules.cpu.memory_access import memory_accesses
from tvm_ext.tir_schedules.cpu.overlapping_tiles import with_overlapping_tiles
from tvm_ext.tir_schedules.cpu.pooling import CpuPooling
from tvm_ext.tir_schedules.cpu.recurrent_layer import CpuRecurrentLayer
from tvm_ext.tir_schedules.cpu.reduction import CpuReduction
from tvm_ext.tir_schedules.cpu.register_tile import RegisterTile
from tvm_ext.tir_schedules.cpu.scan import CpuScan
from tvm_ext.tir_schedules.cpu.several_results import several_results
from tvm_ext.tir_schedules.cpu.softmax_and_norm import SoftmaxAndNorm
from tvm_ext.tir_schedules.cpu.symbolic_tile import SymbolicTiles
from tvm_ext.tir_schedules.cpu.winograd import Winograd
from tvm_ext.tuning.backend import RANDOM, CostModelEntry, Tuning
from tvm_ext.tuning.runner import RunDeviceAddress


def _masked_tails(func: tirx.PrimFunc, machine: CpuDescription) -> tirx.PrimFunc:
    if not has_masked_memory(machine):
        return func
    return with_masked_tails(func, plain_in_full=machine.vector_bits < 512)


def _check_runs_here(
    machine: CpuDescription, servers: Sequence[RunDeviceAddress]
) -> dict[str, str]:
    """Refuses a target whose code this machine would not run, where it has to."""
    host = host_description()
    lacking = sorted(set(machine.required_features) - set(host.required_features))
    if servers or (machine.architecture == host.architecture and not lacking):
        return {}
    what = f"lacks {', '.join(lacking[:3])}" if lacking else f"is {host.architecture}"
    raise TuningError(
        f"this machine {what}, so code for target '{machine.name}' cannot be measured here; "
        "expected a target that it can run: leave --target out, or measure on servers that can "
        "with --rpc-tracker"
    )


CPU = Backend(
    name="cpu",
    machine_type=CpuDescription,
    default=host_description,
    tvm_targets={"llvm": cpu_of_tvm_target},
    source="built-in",
    parts=(
        Scheduling(
            templates=(
                BatchLoop(CpuTranspose()),
                BatchLoop(CpuElementwise(), whole_first=True),
                BatchLoop(CpuPooling()),
                BatchLoop(SoftmaxAndNorm()),
                BatchLoop(CpuReduction()),
                CpuScan(),
                CpuRecurrentLayer(),
                CpuAttention(),
                AmxTile(),
                DotProductTile(),
                DequantizeMatmul(),
                BlockIntegerMatmul(),
                Winograd(),
                BatchLoop(CpuDepthwiseConvolution()),
                FewRowTile(),
                BatchLoop(RegisterTile(), least_uses=64),
                CpuReduction(products=True, name="matrix times vector"),
                SymbolicTiles(),
            ),
            fallback=Blockwise(),
            loop_templates=(CpuLoopNest(),),
            libraries=(MlirCode(), MlirLoops()),
            several_results=several_results,
            finishing=(lambda func, _machine: with_overlapping_tiles(func), _masked_tails),
            memory_accesses=memory_accesses,
        ),
        Tuning(
            cost_models={
                "xgboost": CostModelEntry(
                    "tvm_ext.tuning.cost_models.xgboost_model:XGBoostModel", "xgboost-{}.npz"
                ),
                "predictor": CostModelEntry(
                    "tvm_ext.tuning.cost_models.performance_predictor:PredictorModel",
                    "predictor-{}.json",
                ),
                "analytic": CostModelEntry("tvm_ext.tuning.cpu.cost_model:CpuCostModel"),
                "random": RANDOM,
            },
            check_machine=_check_runs_here,
            pruner="tvm_ext.tuning.pruning:Pruner",
        ),
        Programs(
            build=cpu_program,
            built_for=lambda machine: {
                "mtriple": machine.mtriple,
                "mcpu": machine.mcpu,
                "required_features": machine.required_features,
                "machine": machine.architecture,
            },
            threads=lambda machine: machine.cores,
            records_name=shipped_name,
        ),
    ),
)
