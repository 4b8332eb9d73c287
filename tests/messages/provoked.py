"""A list of ways to make the package refuse, and the message of each."""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from commands import invoke
from small_models import model, node, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import TvmExtError


@dataclass(frozen=True)
class RefusalCase:
    """A refusal to provoke.

    Attributes
    ----------
    name : str
        What is wrong.
    provoke : callable
        Raises an error, or returns the line of a command; gets an empty folder.
    says : tuple of str
        What the message must name.
    """

    name: str
    provoke: Callable[[Path], Any]
    says: tuple[str, ...]

    def message(self, folder: Path) -> str:
        """The message; an error that is not of ours leaves this function."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = self.provoke(folder)
            except TvmExtError as error:
                return str(error)
        if not isinstance(found, str):
            raise AssertionError(f"{self.name}: nothing was refused")
        return found


CASES: list[RefusalCase] = []


def case(name: str, *says: str) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    """Registers a function as a case."""

    def register(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
        CASES.append(RefusalCase(name, function, says))
        return function

    return register


def one(op: str, inputs: dict[str, Any], out: Any = None, name: str = "it", **more) -> Any:
    """A model of one node; arrays among the inputs are stored."""
    stored = {k: v for k, v in inputs.items() if isinstance(v, np.ndarray)}
    given = [value(k, v) for k, v in inputs.items() if not isinstance(v, np.ndarray)]
    made = node(op, list(inputs), ["y"], name=name, **more)
    return model([made], given, [value("y", out)], **stored)


def relu(shape=(2, 3)) -> onnx.ModelProto:
    return one("Relu", {"x": list(shape)}, name="relu")


def saved(folder: Path, made: onnx.ModelProto, name: str = "m.onnx", **options: Any) -> Path:
    onnx.save_model(made, folder / name, **options)
    return folder / name


def compiled(made: Any, **options: Any) -> tvm_ext.CompiledModel:
    return tvm_ext.compile(made, **{"target": HOST, "opt_level": 0, **options})


def command(*arguments: Any) -> str:
    """The line that a command prints on stderr, without what begins it."""
    result = invoke(*arguments)
    if result.exit_code not in (2, 3):
        raise AssertionError(f"exit code {result.exit_code}: {result.output}")
    lines = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    return "\n".join(lines).removeprefix("error: ")


@contextlib.contextmanager
def user_pass(function: Any, level: str = "graph", source: str = "user", **more: Any) -> Any:
    """``function`` as a registered pass, for a while; of another source as if it were ours."""
    from tvm_ext.passes import registry

    tvm_ext.register_pass(function, level=level, name="Injected", source=source, **more)
    try:
        yield
    finally:
        registry.remove("Injected")


@contextlib.contextmanager
def replaced(owner: Any, name: str, new: Any) -> Any:
    """An attribute with another value, for a while."""
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)
