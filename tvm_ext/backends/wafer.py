"""The backend for wafer-scale meshes, whose times are modelled."""

from tvm_ext.hardware.backend import Backend
from tvm_ext.hardware.wafer.description import WaferDescription, mesh_of_tvm_target
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tir_schedules.wafer.blockwise import WaferBlockwise
from tvm_ext.tir_schedules.wafer.convolution import WaferConvolution
from tvm_ext.tir_schedules.wafer.elementwise import WaferElementwise
from tvm_ext.tir_schedules.wafer.gemv import WaferGemv
from tvm_ext.tir_schedules.wafer.matmul import WaferMatmul, with_skewed_steps
from tvm_ext.tir_schedules.wafer.reduction import WaferReduction
from tvm_ext.tir_schedules.wafer.stencil import WaferStencil
from tvm_ext.tir_schedules.wafer.transpose import WaferTranspose
from tvm_ext.tuning.backend import RANDOM, CostModelEntry, Tuning
from tvm_ext.tuning.wafer.measurer import WaferMeasurer, refuse_servers

WAFER = Backend(
    name="wafer",
    machine_type=WaferDescription,
    tvm_targets={"llvm": mesh_of_tvm_target},
    commands="tvm_ext.cli.wafer:app",
    no_programs=(
        "is a mesh, whose programs are laid out over its PEs and not compiled kernel by kernel; "
        "expected a CPU or a GPU, such as 'cpu', or 'tvm-ext wafer explain MODEL --target {name}'"
    ),
    source="built-in",
    parts=(
        Scheduling(
            templates=(
                WaferTranspose(),
                WaferElementwise(),
                WaferReduction(),
                WaferMatmul(),
                WaferGemv(),
                WaferConvolution(),
                WaferStencil(),
            ),
            fallback=WaferBlockwise(),
            finishing=(lambda func, _machine: with_skewed_steps(func),),
        ),
        Tuning(
            cost_models={
                "analytic": CostModelEntry("tvm_ext.tuning.wafer.cost_model:WaferCostModel"),
                "random": RANDOM,
            },
            usual_model="analytic",
            check_machine=refuse_servers,
            model_measurer=WaferMeasurer,
        ),
    ),
)
