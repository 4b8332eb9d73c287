"""A builder and a runner for MetaSchedule that answer from the model of a mesh.

With these, plain ``meta_schedule.tune_tir`` tunes for a machine that nobody has here: nothing is
compiled and nothing is run. ``TuningSession`` uses the same cost function by way of
``MeshMeasurer``.
"""

import json
import tempfile
from pathlib import Path

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.tuning.mesh_analysis.kernel_cost import mesh_cost
from tvm_ext.tuning.mesh_analysis.loops import NotReadable


@derived_object
class ModelledBuilder(ms.builder.PyBuilder):
    """Writes down what each candidate costs instead of code.

    Parameters
    ----------
    mesh : MeshDescription
        What the kernels are scheduled for.
    """

    def __init__(self, mesh: MeshDescription) -> None:
        super().__init__()
        self.mesh = mesh

    def build(self, build_inputs: list[ms.builder.BuilderInput]) -> list[ms.builder.BuilderResult]:
        """A file with the seconds of each candidate, or the reason why it has none."""
        return [self._built(one.mod) for one in build_inputs]

    def _built(self, mod: tvm.IRModule) -> ms.builder.BuilderResult:
        try:
            cost = mesh_cost(mod, self.mesh)
        except (NotReadable, MeshLimitError) as error:
            return ms.builder.BuilderResult(None, str(error))
        path = Path(tempfile.mkdtemp(prefix="modelled-")) / "cost.json"
        path.write_text(json.dumps({"seconds": cost.seconds}))
        return ms.builder.BuilderResult(str(path), None)


@derived_object
class ModelledRunner(ms.runner.PyRunner):
    """Reads what ``ModelledBuilder`` wrote."""

    def run(self, runner_inputs: list[ms.runner.RunnerInput]) -> list[ms.runner.RunnerFuture]:
        """One answer for each candidate, there at once."""
        return [_answer(str(one.artifact_path)) for one in runner_inputs]


def _answer(path: str) -> ms.runner.RunnerFuture:
    # MetaSchedule itself removes the folder that the builder made.
    seconds = float(json.loads(Path(path).read_text())["seconds"])
    result = ms.runner.RunnerResult([seconds], None)
    return ms.runner.RunnerFuture(lambda: True, lambda: result)
