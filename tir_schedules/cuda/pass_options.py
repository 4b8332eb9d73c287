"""What TVM's passes are told when kernels for a GPU are built."""

import tvm

# Copies that a template marks as asynchronous become cp.async; without it they are plain copies.
_CUDA_OPTIONS = {"tirx.use_async_copy": True}


def pass_options(target: tvm.target.Target) -> dict[str, bool]:
    """Options of ``tvm.transform.PassContext`` for a build for ``target``."""
    return dict(_CUDA_OPTIONS) if target.kind.name == "cuda" else {}
