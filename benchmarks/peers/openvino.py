"""OpenVINO on the CPU, in float32, tuned for latency."""

import numpy as np

from peers.peer import Job, Program, package_version, refusal


class OpenVino:
    """``InferRequest.infer`` on the caller's arrays, its outputs not copied: its fastest call."""

    name = "openvino"
    title = "OpenVINO"

    def version(self) -> str:
        """See ``Peer``."""
        return package_version("openvino")

    def prepare(self, job: Job) -> Program:
        """See ``Peer``."""
        self.version()
        import openvino

        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": job.threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        try:
            core = openvino.Core()
            model = core.read_model(str(job.path))
            known = {name for port in model.inputs for name in port.get_names()}
            feed = {name: array for name, array in job.inputs.items() if name in known}
            model.reshape({name: list(array.shape) for name, array in feed.items()})
            request = core.compile_model(model, "CPU", settings).create_infer_request()
            request.infer(feed)
        except Exception as error:
            raise refusal("refuses the model", error) from error

        def outputs() -> list[np.ndarray]:
            result = request.infer(feed)
            return [np.array(result[index]) for index in range(len(model.outputs))]

        return Program(lambda: request.infer(feed, share_inputs=True, share_outputs=True), outputs)
