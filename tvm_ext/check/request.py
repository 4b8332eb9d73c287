"""What was asked to be checked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tvm_ext.hardware.description import Processor
from tvm_ext.passes.pipeline import Pipeline, build_pipeline


@dataclass(frozen=True)
class CheckRequest:
    """A model, how it is compiled, and how exact it has to be; the terms are ``compile``'s."""

    source: str | Path | onnx.ModelProto
    machine: Processor
    input_shapes: Mapping[str, Sequence[int | str]] | None = None
    opt_level: int | str = "O3"
    disabled_passes: tuple[str, ...] = ()
    pass_config: Mapping[str, Mapping[str, Any]] | None = None
    rtol: float | None = None

    def pipeline(self, opt_level: int | str | None = None, without: Iterable[str] = ()) -> Pipeline:
        """The passes, at another level or without some of them if so asked."""
        level = self.opt_level if opt_level is None else opt_level
        return build_pipeline(level, {*self.disabled_passes, *without}, self.pass_config)
