"""TVM as it comes: its own ONNX importer and its default pipeline, for this CPU."""

from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from peers.peer import Job, Program, package_version, refusal
from tvm_ext.hardware.host import host_description
from tvm_ext.hardware.threads import use_threads


class StockTvm:
    """The virtual machine's call on tensors that are there already."""

    name = "tvm"
    title = "stock TVM"

    def version(self) -> str:
        """See ``Peer``."""
        return package_version("apache-tvm")

    def prepare(self, job: Job) -> Program:
        """See ``Peer``."""
        target = host_description().with_cores(job.threads).tvm_target()
        shapes = {name: list(array.shape) for name, array in job.inputs.items()}
        try:
            mod = from_onnx(onnx.load(job.path), shape_dict=shapes, keep_params_in_input=False)
            pipeline = relax.get_default_pipeline(target)
            program = tvm.compile(mod, target=target, relax_pipeline=pipeline)
            main = relax.VirtualMachine(program, tvm.cpu())["main"]
            order = [str(param.name) for param in mod["main"].params]
            tensors = [tvm.runtime.tensor(job.inputs[name]) for name in order]
        except Exception as error:
            raise refusal("refuses the model", error) from error

        def run() -> Any:
            use_threads(job.threads)
            return main(*tensors)

        def outputs() -> list[np.ndarray]:
            result = run()
            values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
            return [value.numpy() for value in values]

        return Program(run, outputs)
