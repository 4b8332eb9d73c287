"""ONNX Runtime on the CPU with all of its graph optimisations."""

import numpy as np

from peers.peer import Job, PeerError, Program, package_version, refusal

# ONNX Runtime's severities run from 0 (verbose) to 4 (fatal); what matters comes as an exception.
_FATAL_ONLY = 4


class OnnxRuntime:
    """``InferenceSession.run``; of a kernel, with its inputs and outputs bound."""

    name = "onnxruntime"
    title = "ONNX Runtime"

    def version(self) -> str:
        """See ``Peer``."""
        return package_version("onnxruntime")

    def prepare(self, job: Job) -> Program:
        """See ``Peer``."""
        self.version()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        try:
            session = onnxruntime.InferenceSession(
                str(job.path), options, providers=["CPUExecutionProvider"]
            )
            known = {value.name for value in session.get_inputs()}
            feed = {name: array for name, array in job.inputs.items() if name in known}
            outputs = [np.asarray(array) for array in session.run(None, feed)]
        except Exception as error:
            raise _refusal(error) from error
        if not job.is_kernel:
            return Program(lambda: session.run(None, feed), lambda: session.run(None, feed))
        binding = session.io_binding()
        kept = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in outputs]
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for value, place in zip(session.get_outputs(), kept, strict=True):
            binding.bind_ortvalue_output(value.name, place)

        def bound_outputs() -> list[np.ndarray]:
            session.run_with_iobinding(binding)
            # Views of memory that goes with the binding.
            return [np.array(place.numpy()) for place in kept]

        return Program(lambda: session.run_with_iobinding(binding), bound_outputs)


def _refusal(error: Exception) -> PeerError:
    # Its messages begin with "[ONNXRuntimeError] : <code> : <name> : ".
    short = str(error).split(" : ", 3)[-1]
    return refusal("refuses the model", RuntimeError(short))
