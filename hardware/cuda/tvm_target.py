"""The GPU that a TVM target of kind cuda stands for."""

from typing import Any

import tvm

from tvm_ext.configs.loader import check_config
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.cuda.host import capability_of, nearest
from tvm_ext.hardware.targets import plain_attributes, plain_value, presets_of


def gpu_of_tvm_target(target: tvm.target.Target) -> CudaDescription:
    """Its own numbers, others of the preset that is nearest by compute capability."""
    options = plain_attributes(target)
    arch = options.pop("arch")
    base = nearest(presets_of(CudaDescription), capability_of(arch))
    options.pop("max_num_threads", None)
    fields = {
        "max_threads_per_block": "max_threads_per_block",
        "max_shared_memory_per_block": "shared_memory_bytes",
        "registers_per_block": "registers_per_block",
        "l2_cache_size_bytes": "l2_bytes",
        "thread_warp_size": "warp_size",
    }
    given: dict[str, Any] = {
        field: options.pop(key) for key, field in fields.items() if key in options
    }
    if target.host is not None:
        options["host"] = plain_value(target.host.export())
    given |= {
        "name": arch,
        "summary": f"given as a TVM target; numbers of '{base.name}'",
        "arch": arch,
        "target_options": options,
    }
    return check_config(base.model_dump() | given, CudaDescription, "the TVM target")
