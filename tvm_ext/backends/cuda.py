"""The backend for NVIDIA GPUs."""

from tvm_ext.compiler.backend import Programs
from tvm_ext.compiler.build import cuda_program
from tvm_ext.hardware.backend import Backend
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.host import default_gpu, gpu_memory, gpu_of_tvm_target
from tvm_ext.hardware.cuda.runtime_library import vendor_library_note
from tvm_ext.tir_schedules.backend import Scheduling
from tvm_ext.tir_schedules.cuda.attention.attention import Attention
from tvm_ext.tir_schedules.cuda.cublas import CublasMatmul
from tvm_ext.tir_schedules.cuda.depthwise_convolution import (
    CudaDepthwiseConvolution,
    DirectConvolution,
)
from tvm_ext.tir_schedules.cuda.dlight_rules import TVM_RULES
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.finish import finished_for_cuda
from tvm_ext.tir_schedules.cuda.generic import Generic
from tvm_ext.tir_schedules.cuda.launch import is_bound
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.cuda.matmul.gemv import Gemv
from tvm_ext.tir_schedules.cuda.memory_access import memory_accesses
from tvm_ext.tir_schedules.cuda.nms import NMS
from tvm_ext.tir_schedules.cuda.pooling import CudaPooling, WindowReduction
from tvm_ext.tir_schedules.cuda.recurrent_layer import CudaRecurrentLayer
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.scan import CudaScan
from tvm_ext.tir_schedules.cuda.sort import Sort
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention import (
    WarpgroupAttention,
)
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import WarpgroupContraction
from tvm_ext.tuning.backend import RANDOM, CostModelEntry, Tuning
from tvm_ext.tuning.cuda.build import CudaBuildCheck
from tvm_ext.tuning.cuda.presence import gpu_facts

CUDA = Backend(
    name="cuda",
    machine_type=CudaDescription,
    default=default_gpu,
    tvm_targets={"cuda": gpu_of_tvm_target},
    facts=lambda: {"vendor_libraries": vendor_library_note()},
    source="built-in",
    parts=(
        Scheduling(
            templates=(
                WarpgroupAttention(),
                Attention(),
                CudaRecurrentLayer(),
                CudaScan(),
                Sort(),
                NMS(),
                CudaDepthwiseConvolution(),
                WarpgroupContraction(),
                CudaContraction(),
                DirectConvolution(),
                Gemv(),
                CudaTranspose(),
                CudaElementwise(),
                CudaPooling(),
                RowReduction(),
                WindowReduction(),
            ),
            rules=TVM_RULES,
            fallback=Generic(),
            libraries=(CublasMatmul(),),
            finishing=(lambda func, _machine: finished_for_cuda(func),),
            is_bound=is_bound,
            memory_accesses=memory_accesses,
        ),
        Tuning(
            cost_models={
                "analytic": CostModelEntry("tvm_ext.tuning.cuda.cost_model:CudaCostModel"),
                "xgboost": CostModelEntry(
                    "tvm_ext.tuning.cost_models.xgboost_model:XGBoostModel", "xgboost-{}.npz"
                ),
                "random": RANDOM,
            },
            # What the others learn from is the loops of CPUs.
            usual_model="analytic",
            check_machine=gpu_facts,
            device="cuda",
            cache_bytes=lambda machine: machine.l2_bytes,
            build_check=CudaBuildCheck,
        ),
        Programs(
            build=cuda_program,
            built_for=lambda machine: {"mcpu": machine.arch},
            device="cuda",
            memory_limit=gpu_memory,
            keeps_workspaces=True,
        ),
    ),
)
