"""What every program that is compared has to offer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Protocol

import numpy as np

from tvm_ext.errors import TvmExtError

_REASON_LENGTH = 160


class PeerError(TvmExtError):
    """A peer is not installed, or cannot take a model."""


@dataclass(frozen=True)
class Job:
    """One model to prepare.

    Attributes
    ----------
    path : Path
        The ONNX file.
    inputs : dict[str, np.ndarray]
        One array an input, under its ONNX name; their shapes are the shapes to compile for.
    threads : int
        Threads that a run may use.
    is_kernel : bool
        Whether the model is a single kernel rather than a network. Of a kernel the computation
        alone is measured: its inputs and outputs stay where the program keeps them. A network's
        inputs come as NumPy arrays and its outputs are such arrays, as a user has them.
    """

    path: Path
    inputs: dict[str, np.ndarray]
    threads: int
    is_kernel: bool


@dataclass(frozen=True)
class Program:
    """A model ready to run on fixed inputs.

    Attributes
    ----------
    run : callable
        One inference; this is what is timed.
    outputs : callable
        Runs once and returns the outputs in the order of the model's; later runs leave them alone.
    """

    run: Callable[[], object]
    outputs: Callable[[], Sequence[np.ndarray]]


class Peer(Protocol):
    """Another way to run an ONNX model on this CPU."""

    @property
    def name(self) -> str:
        """What ``--peers`` calls it."""
        ...

    @property
    def title(self) -> str:
        """What tables call it."""
        ...

    def version(self) -> str:
        """The installed version; raises PeerError where it is not installed."""
        ...

    def prepare(self, job: Job) -> Program:
        """The model, compiled; raises PeerError, with the reason, where the peer refuses it."""
        ...


def package_version(package: str) -> str:
    """Version of an installed distribution; raises PeerError where there is none."""
    try:
        return installed_version(package)
    except PackageNotFoundError as error:
        raise PeerError(f"not installed; expected the package: pip install {package}") from error


def refusal(what: str, error: BaseException) -> PeerError:
    """``error`` in one short line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TVM's messages end with what is wrong; those of the others begin with it.
    line = lines[-1 if "Traceback" in str(error) else 0] if lines else type(error).__name__
    return PeerError(f"{what}: {line[:_REASON_LENGTH]}")
