"""Programs for exact sizes beside that for any, as functions of one program: ``specialize=``.

They share weights, which are in a program once where their values are equal.
"""

import os
import pickle
import queue
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.stages import ModelSource
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError, TvmExtError
from tvm_ext.onnx_frontend.weights import model_digest, write_model
from tvm_ext.passes.calls_of_kernels import calls_kernels
from tvm_ext.report.records import KernelRecord, specialized_name
from tvm_ext.runtime import load
from tvm_ext.tensor_spec import SizeRange, TensorSpec, listed, shapes_of, symbolic_names
from tvm_ext.tuning.worker import Worker, WorkerFailure

Specialization: TypeAlias = Mapping[str, int | Sequence[int | str]]
"""Sizes of symbolic dimensions by name, or of inputs by theirs: ``{"N": 8}``, ``{"x": [8, 3]}``."""


def specialized_shapes(
    inputs: Sequence[TensorSpec], specialize: Sequence[Specialization]
) -> list[dict[str, list[int | str]]]:
    """Shapes of inputs, as for ``input_shapes``, of each specialised program.

    Parameters
    ----------
    inputs : sequence of TensorSpec
        The inputs of the program for any sizes.
    specialize : sequence of mappings
        As for ``tvm_ext.compile``.

    Raises
    ------
    InputError
        A name is neither an input nor a symbolic dimension, a size contradicts the model, a range
        or another one, or none is given.
    """
    return [_shapes(inputs, _sizes(inputs, given)) for given in specialize]


def _sizes(inputs: Sequence[TensorSpec], given: Specialization) -> dict[str, int]:
    """The given sizes by dimension."""
    names, by_name = symbolic_names(shapes_of(inputs)), {spec.name: spec for spec in inputs}
    sizes: dict[str, int] = {}
    for name, value in given.items():
        if isinstance(value, int):
            if name not in names:
                raise InputError(
                    f"specialize: '{name}' is not a dynamic dimension; {nearest_hint(name, names)}"
                )
            found = {name: value}
        elif name in by_name:
            found = _sizes_of_input(by_name[name], value)
        else:
            raise InputError(
                f"specialize: the model has no input '{name}'; {nearest_hint(name, by_name)}"
            )
        for dimension, size in found.items():
            if sizes.setdefault(dimension, size) != size:
                raise InputError(
                    f"specialize: dimension '{dimension}' is {sizes[dimension]} and {size}; "
                    "expected one size for it: give one, or a program for each"
                )
    _require_sizes(inputs, sizes, given)
    return sizes


def _sizes_of_input(spec: TensorSpec, shape: Sequence[int | str]) -> dict[str, int]:
    """The sizes that a shape gives to symbolic dimensions; texts leave one as it is."""
    fits = len(shape) == len(spec.shape) and all(
        isinstance(size, str) or isinstance(own, str) or size == own
        for size, own in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"specialize: {list(shape)} is not a shape of {spec.describe()}; expected its fixed "
            "sizes, and a number for each other dimension: correct the shape"
        )
    pairs = zip(spec.shape, shape, strict=True)
    return {own: size for own, size in pairs if isinstance(own, str) and isinstance(size, int)}


def _require_sizes(
    inputs: Sequence[TensorSpec], sizes: Mapping[str, int], given: Specialization
) -> None:
    if not sizes:
        names = symbolic_names(shapes_of(inputs))
        expected = f"sizes for {listed(names)}" if names else "a model with dynamic sizes"
        raise InputError(
            f"specialize: {dict(given)} fixes no dynamic size; expected {expected}: give it, or "
            "leave specialize out"
        )
    for name, size in sizes.items():
        allowed = _range_of(inputs, name) or SizeRange(1)
        if size not in allowed:
            raise InputError(
                f"specialize: dimension '{name}' cannot have size {size}; expected {allowed}: "
                "give an allowed size"
            )


def _range_of(inputs: Sequence[TensorSpec], name: str) -> SizeRange | None:
    pairs = [pair for spec in inputs for pair in zip(spec.shape, spec.ranges, strict=False)]
    return next((allowed for own, allowed in pairs if own == name and allowed), None)


def _shapes(inputs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> dict[str, list[int | str]]:
    """The shapes of the inputs that have one of these dimensions; others keep name and range."""

    def size(own: int | str, allowed: SizeRange | None) -> int | str:
        if isinstance(own, int) or own in sizes:
            return own if isinstance(own, int) else sizes[own]
        # What follows from the model alone is found again.
        was_given = allowed is not None and allowed.low > 0 and allowed.has_end
        return f"?:{allowed}" if was_given else "?"

    return {
        spec.name: [
            size(*pair)
            for pair in zip(spec.shape, spec.ranges or (None,) * len(spec.shape), strict=True)
        ]
        for spec in inputs
        if any(own in sizes for own in spec.shape)
    }


# One module of all programs.


def with_specialized(mod: tvm.IRModule, others: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """The functions of a program for any sizes and, under names of their own, of the others.

    Parameters
    ----------
    mod, others : tvm.IRModule
        Right before code generation.
    """
    functions = dict(mod.functions.items())
    for number, other in enumerate(others, 1):
        functions.update(_renamed(other, number))
    return tvm.IRModule(functions, attrs=mod.attrs) if others else mod


def _renamed(mod: tvm.IRModule, number: int) -> dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc]:
    names = [str(var.name_hint) for var in mod.functions]
    new = {name: tvm.ir.GlobalVar(specialized_name(name, number)) for name in names}

    def renamed(func: tvm.ir.BaseFunc) -> tvm.ir.BaseFunc:
        if not isinstance(func, tirx.PrimFunc) or calls_kernels(func):
            func = tvm_ffi.structural_map(func, (tvm.ir.GlobalVar, lambda v: new[v.name_hint]))
        symbol = (func.attrs or {}).get("global_symbol")
        if symbol is None:
            return func
        return func.with_attr("global_symbol", specialized_name(str(symbol), number))

    return {new[str(var.name_hint)]: renamed(func) for var, func in mod.functions.items()}


def specialized_kernels(records: Sequence[KernelRecord], number: int) -> list[KernelRecord]:
    """The kernels under the names that they have in the program of all."""
    return [replace(record, name=specialized_name(record.name, number)) for record in records]


# Programs for the sizes that runs have most: ``specialize="auto"``.


# Runs of the same sizes after which these get a program.
_OFTEN = 50
# Different shapes of inputs that are counted.
_COUNTED = 1 << 12
# How much others come first while a program is built.
_NICENESS = 10
_BUILD_SECONDS = 3600.0

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class FrequentSizes:
    """Counts the sizes of a model's runs, and has programs built for those that come often.

    That happens in a process of low priority, which compiles the model anew with what the cache
    knows of it; what it has made then takes the place of the model's program, between two runs.

    Parameters
    ----------
    compiled : CompiledModel
        The model that is watched.
    model : str, Path or onnx.ModelProto
        What it was compiled from.
    arguments : mapping
        Of ``tvm_ext.compile``, beside the model.
    limit : int
        How many sizes may get a program.

    Raises
    ------
    InputError
        The model cannot be compiled in another process: it is a module of TVM, or an argument
        cannot be sent there.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        model: ModelSource,
        arguments: Mapping[str, Any],
        limit: int,
    ) -> None:
        digest = None if isinstance(model, tvm.IRModule) else model_digest(model)
        if isinstance(model, tvm.IRModule) or digest is None:
            raise InputError(
                "specialize: 'auto' compiles the model again while it runs; expected an ONNX "
                "file, or a model in memory below 2 GiB: give one of these, or list the sizes"
            )
        self._compiled, self._model, self._digest, self._limit = compiled, model, digest, limit
        self._arguments = dict(arguments)
        try:
            pickle.dumps(self._arguments)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise InputError(
                f"specialize: 'auto' compiles in another process, and an argument cannot be sent "
                f"there ({error}); expected passes that are given by name or in a file: give them "
                f"so, or list the sizes"
            ) from error
        self._counts: dict[_Shapes, int] = {}
        self._sizes: list[dict[str, int]] = []
        self._built: list[dict[str, int]] = []
        self._waiting: queue.SimpleQueue[dict[str, int]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()

    def count(self, inputs: Mapping[str, Any]) -> None:
        """Counts one run; safe for threads, and quick."""
        specs = self._compiled.inputs
        try:
            shapes = tuple([inputs[spec.name].shape for spec in specs])
            seen = self._counts.get(shapes, 0) + 1
        except (AttributeError, KeyError, TypeError):
            # What is wrong with inputs is said where they are checked.
            return
        if seen > 1 or len(self._counts) < _COUNTED:
            self._counts[shapes] = seen
        if seen == _OFTEN:
            with self._lock:
                self._ask_for(shapes)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all programs that were asked for are built; whether they are."""
        return self._idle.wait(timeout)

    def _ask_for(self, shapes: _Shapes) -> None:
        sizes: dict[str, int] = {}
        with suppress(InputError):
            # No program for sizes that the model refuses.
            for spec, shape in zip(self._compiled.inputs, shapes, strict=True):
                sizes.update(_sizes_of_input(spec, shape))
            _require_sizes(self._compiled.inputs, sizes, sizes)
            if len(self._sizes) >= self._limit or sizes in self._sizes:
                return
            self._sizes.append(sizes)
            self._waiting.put(sizes)
            if self._idle.is_set():
                self._idle.clear()
                threading.Thread(target=self._build_waiting, daemon=True).start()

    def _build_waiting(self) -> None:
        """Builds until nothing waits; in a thread of its own."""
        worker = Worker()
        try:
            while True:
                with self._lock:
                    if self._waiting.empty():
                        self._idle.set()
                        return
                self._built.append(self._waiting.get())
                self._build(worker, self._built)
        except (TvmExtError, WorkerFailure, OSError) as error:
            self._give_up(str(error))
        finally:
            worker.stop()

    def _build(self, worker: Worker, sizes: Sequence[Mapping[str, int]]) -> None:
        """Puts a program with these exact sizes in the place of the model's."""
        if model_digest(self._model) != self._digest:
            raise InputError("the model is not what it was when it was compiled")
        arguments = {**self._arguments, "specialize": list(map(dict, sizes))}
        with tempfile.TemporaryDirectory(prefix="tvm-ext-") as folder:
            source, path = self._model, Path(folder) / "model.tvmx"
            if not isinstance(source, str | Path):
                source = Path(folder) / "model.onnx"
                write_model(self._model, source)
            job = (str(source), arguments, str(path))
            worker.call(compile_and_save, *job, timeout=_BUILD_SECONDS)
            made = load(path)
        for report in (made.report, *made.report.specialized):
            # A model in memory is not named after a file.
            report.model = self._compiled.report.model
        self._compiled.replace_program(made)

    def _give_up(self, reason: str) -> None:
        self._compiled.report.warnings = [
            *self._compiled.report.warnings,
            f"no more programs for frequent sizes: {reason}",
        ]
        self._limit = 0
        self._idle.set()


def compile_and_save(model: str, arguments: Mapping[str, Any], path: str) -> None:
    """Compiles a model into a file, in a process that lets others of the machine go first."""
    # Only here: it imports this module.
    from tvm_ext.api import compile

    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    with warnings.catch_warnings():
        # The process that watches has given them.
        warnings.simplefilter("ignore")
        compile(model, **arguments).save(path)
