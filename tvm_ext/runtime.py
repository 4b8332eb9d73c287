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
    """Loads a model that ``CompiledModel.save`` wrote. All of the file is checked first.

    Parameters
    ----------
    path : str or Path
        The file of the saved model (.tvmx).
    threads : int, optional
        For a CPU: the number of threads that run the model. The default is the number that
        ``compile`` decided on.

    Returns
    -------
    CompiledModel

    Raises
    ------
    ArtifactError
        The file is damaged, was written by a newer release or with another version of TVM, or is
        for another machine.
    TargetError
        ``threads`` is below 1, or the model is for a GPU.
    """
    artifact = read_artifact(path)
    if artifact.has_host_steps:
        from tvm_ext.hosted_model import HostedModel

        return HostedModel.from_artifact(artifact, threads)
    if artifact.manifest.sharded is not None:
        from tvm_ext.distributed.sharded_model import ShardedModel

        return ShardedModel.from_artifact(artifact, threads)
    return CompiledModel.from_artifact(artifact, threads)
