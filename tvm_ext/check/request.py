"""What is checked: a model, how it is compiled, and how exact it has to be."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import tvm

from tvm_ext.api import SamplesSource, TargetSource, compile
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.errors import TvmExtError
from tvm_ext.hardware.machine import AUTOMATIC_PRECISION, MODEL_PRECISION, MachineDescription
from tvm_ext.hardware.targets import program_target
from tvm_ext.passes.pipeline import Pipeline, PipelineSource, build_pipeline

# What comes out of a module that cannot be built, or whose program fails: TVM's errors at run time
# have no base of their own.
CANNOT_RUN = (TvmExtError, tvm.error.InternalError, RuntimeError, ValueError, TypeError)


@dataclass(frozen=True)
class CheckRequest:
    """The terms are ``compile``'s, and ``rtol`` is ``check_model``'s.

    ``precision`` is "auto" or "model": another one is part of ``machine``.
    """

    source: str | Path | onnx.ModelProto
    machine: MachineDescription
    input_shapes: Mapping[str, Sequence[int | str]] | None = None
    opt_level: int | str = "O3"
    disabled_passes: tuple[str, ...] = ()
    pass_config: Mapping[str, Mapping[str, Any]] | None = None
    pipeline: PipelineSource | None = None
    rtol: float | None = None
    precision: str = MODEL_PRECISION
    max_error: float | None = None
    samples: SamplesSource = None

    @classmethod
    def of(
        cls,
        source: str | Path | onnx.ModelProto,
        target: TargetSource = "cpu",
        disabled_passes: Iterable[str] = (),
        precision: str = MODEL_PRECISION,
        **others: Any,
    ) -> "CheckRequest":
        """For a target as ``compile`` takes it; raises TargetError or ConfigError."""
        machine = program_target(target)
        if precision != AUTOMATIC_PRECISION:
            machine, precision = machine.with_precision(precision), MODEL_PRECISION
        disabled = tuple(disabled_passes)
        return cls(source, machine, disabled_passes=disabled, precision=precision, **others)

    def compile(self) -> CompiledModel:
        """The compiled model; raises as ``tvm_ext.compile``."""
        return compile(
            self.source,
            self.machine,
            input_shapes=self.input_shapes,
            opt_level=self.opt_level,
            disabled_passes=self.disabled_passes,
            pass_config=self.pass_config,
            pipeline=self.pipeline,
            precision=self.precision,
            max_error=self.max_error,
            samples=self.samples,
        )

    def passes(self, without: Iterable[str] = ()) -> Pipeline:
        """The passes, without some of them if so asked."""
        disabled = {*self.disabled_passes, *without}
        return build_pipeline(self.opt_level, disabled, self.pass_config, self.pipeline)
