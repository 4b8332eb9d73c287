"""Storage planned for a module by itself, as a compilation does it."""

from collections.abc import Mapping

import tvm

from tvm_ext.compiler.compile_context import compiling
from tvm_ext.hardware.targets import current_description
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.report.records import MemoryRecord
from tvm_ext.tensor_spec import SizeRange


def plan_memory(
    mod: tvm.IRModule,
    reuse: bool = True,
    ranges: Mapping[str, SizeRange] | None = None,
    pass_config: Mapping[str, Mapping[str, object]] | None = None,
    **options: bool,
) -> tuple[tvm.IRModule, MemoryRecord]:
    """The module ready for code generation, and its memory figures."""
    config = {**(pass_config or {}), "ShareStorage": {"reuse": reuse, **options}}
    pipeline = build_pipeline("O1", pass_config=config)
    with compiling(current_description()) as context:
        context.ranges = ranges or {}
        return PassRunner().run(pipeline.memory, mod), context.memory


def share_storage(mod: tvm.IRModule) -> tvm.IRModule:
    """The module after ``ShareStorage``, ahead of what makes calls of the virtual machine of it."""
    passes = build_pipeline("O1").memory
    last = next(i for i, one in enumerate(passes) if one.entry.name == "ShareStorage")
    with compiling(current_description()):
        return PassRunner().run(passes[: last + 1], mod)
