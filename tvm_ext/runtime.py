"""``load``: the road of a saved model, which needs neither ONNX nor the compiler.

>>> import tvm_ext.runtime
>>> model = tvm_ext.runtime.load("model.tvmx")  # doctest: +SKIP
>>> outputs = model.run({"x": array})  # doctest: +SKIP

Of TVM only its runtime is loaded. The rest comes with the first thing that needs it: a model for a
GPU, one with host steps, a program that calls TVM's Python functions.
"""

from pathlib import Path

from tvm_ext.artifact import read_artifact
from tvm_ext.compiled_model import CompiledModel


def load(path: str | Path, *, threads: int | None = None) -> CompiledModel:
    """Loads a model that ``CompiledModel.save`` wrote, after checking all of the file.

    Parameters
    ----------
    path : str or Path
        The file.
    threads : int, optional
        How many threads run it on a CPU; as ``compile`` decided if None.

    Raises
    ------
    ArtifactError
        The file is damaged, newer, of another version of TVM, or for another machine.
    TargetError
        ``threads`` is below 1, or the model is for a GPU.
    """
    artifact = read_artifact(path)
    if artifact.has_host_steps:
        from tvm_ext.hosted_model import HostedModel

        return HostedModel.from_artifact(artifact, threads)
    return CompiledModel.from_artifact(artifact, threads)
