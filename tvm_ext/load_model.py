"""``load``: the road of a saved model, which needs neither ONNX nor the compiler's passes."""

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
