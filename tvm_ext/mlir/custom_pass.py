"""Users' passes over the MLIR modules of kernels, registered beside ours.

A pass is a pipeline of MLIR's passes, a script of the transform dialect, patterns of the PDL
dialect, or a function of Python over a module.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from string import Template
from typing import Any

import tvm

from tvm_ext.errors import PassError
from tvm_ext.mlir import MlirError, require_mlir
from tvm_ext.passes.registry import PassEntry, add, current_name, first_line, users_words
from tvm_ext.relay_passes.graph_pass import graph_pass

_STAGES = ("linalg", "bufferized", "llvm")

# Behind what checks bounds and ahead of what chooses loops.
_BEFORE = "ScheduleKernels"


def register_mlir_pass(
    what: str | Callable[..., Any],
    *,
    name: str = "",
    stage: str = "linalg",
    options: Mapping[str, Any] | None = None,
    after: str = "",
) -> Any:
    """Registers a pass that every later ``compile`` for a CPU runs on the MLIR form of its kernels.

    MLIR generates the code of the kernels that it changes, for one thread. It stands in the report,
    and ``disabled_passes`` and ``pass_config`` know it by its name.

    Parameters
    ----------
    what : str or callable
        A pipeline ("canonicalize,cse"); steps of the transform dialect on ``%root``, or a module
        with a named sequence ``__transform_main``; a module of ``pdl.pattern``; or a function of
        an ``ir.Module``, which it changes in place. ``$size`` in a text stands for option "size".
    name : str
        Its name; a function has its own.
    stage : {"linalg", "bufferized", "llvm"}
        What the kernels are when it runs: see ``tvm-ext mlir --stage``.
    options : mapping of str to value, optional
        Options with their defaults; keyword parameters of a function are options of themselves.
        Every pass has the option "kernels": only kernels with this in their name, or in that of an
        ONNX node.
    after : str
        Another pass of MLIR that it runs after; without it, passes run in the order of
        registration.

    Returns
    -------
    What was given.

    Raises
    ------
    PassError
        The name is taken or missing, the stage is unknown, MLIR cannot read the text, or the
        function does not take a module and the options.
    MlirError
        torch-mlir is not installed.
    """
    require_mlir()
    if stage not in _STAGES:
        raise PassError(
            f"the stage of an MLIR pass is '{stage}'; expected one of {', '.join(_STAGES)}: "
            "choose one of them"
        )
    own_name = name or getattr(what, "__name__", "")
    if not own_name or own_name == "<lambda>":
        raise PassError("an MLIR pass without a name was given: pass name='...'")
    run = _runner(what, own_name)
    defaults = dict(options or {})
    if isinstance(what, str):
        _check_text(what, defaults, own_name)
    else:
        defaults = _options_of(what, defaults, own_name)
    doc = inspect.getdoc(what) if callable(what) else f"MLIR: {' '.join(what.split())[:70]}"
    add(
        PassEntry(
            name=own_name,
            level="schedule",
            factory=_factory(own_name, stage, defaults, run),
            source="user",
            summary=first_line(doc),
            doc=doc or "",
            after=current_name(after),
            before="" if after else _BEFORE,
            in_pipelines=False,
        )
    )
    return what


Run = Callable[[Any, Mapping[str, Any]], None]


def _factory(name: str, stage: str, defaults: Mapping[str, Any], run: Run) -> Any:
    """A pass with these options, as ``graph_pass`` makes one of a class."""

    def transform_module(
        self: Any, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tvm.IRModule:
        from tvm_ext.hardware.cpu.description import current_cpu
        from tvm_ext.mlir.kept_modules import change_kernels

        if current_cpu() is None:
            return mod
        given = {key: getattr(self, key) for key in defaults}

        def change(module: Any) -> str:
            before = _operations(module)
            run(module, given)
            return f"at stage {stage}: {_difference(before, _operations(module))}"

        return change_kernels(mod, name, stage, change, self.kernels)

    declared = {"kernels": "", **defaults}
    types = {key: type(value) for key, value in declared.items()}
    members = {"__annotations__": types, "transform_module": transform_module, **declared}
    return graph_pass(type(name, (), members))


def _operations(module: Any) -> Counter[str]:
    """How often a module has each operation."""
    from tvm_ext.mlir.lowering import operations_below

    return Counter(str(op.name) for op in operations_below(module.operation))


def _difference(before: Counter[str], after: Counter[str]) -> str:
    """What came and what went, in a few words."""
    ways = (("more", after - before), ("fewer", before - after))
    parts = [
        f"{count} {way} {name}" for way, found in ways for name, count in sorted(found.items())
    ]
    return ", ".join(parts) or "the same operations, with others inside or other attributes"


def _options_of(function: Callable[..., Any], given: dict[str, Any], name: str) -> dict[str, Any]:
    """The keyword parameters of a function with their defaults, and the options given besides.

    Raises PassError where it cannot be called with a module and these.
    """
    try:
        signature = inspect.signature(function)
        keywords = list(signature.parameters.values())[1:]
        found = {one.name: one.default for one in keywords if one.default is not one.empty} | given
        signature.bind(None, **found)
    except (TypeError, ValueError) as error:
        raise PassError(
            f"MLIR pass '{name}' cannot be called with a module and its options ({error}); "
            "expected a function (module, option=default, ...): correct its parameters"
        ) from error
    return found


def _runner(what: Any, name: str) -> Run:
    if isinstance(what, str):
        return lambda module, given: _run_text(Template(what).safe_substitute(given), module)
    if not callable(what):
        raise PassError(
            f"MLIR pass '{name}' is a {type(what).__name__}; expected text of a pipeline, of the "
            "transform dialect or of PDL, or a function of a module: give one of these"
        )

    def run(module: Any, given: Mapping[str, Any]) -> None:
        try:
            with module.context:
                what(module, **given)
        except MlirError:
            raise
        except Exception as error:
            raise MlirError(
                f"MLIR pass '{name}' raised: {users_words(error)}; expected a changed module: "
                "correct the function"
            ) from error

    return run


def _run_text(text: str, module: Any) -> None:
    from tvm_ext.mlir.lowering import apply_patterns, apply_transform, run_passes

    if "pdl.pattern" in text:
        apply_patterns(text, module)
    elif "transform." in text:
        apply_transform(text, module)
    else:
        run_passes(module, [text])


def _check_text(text: str, defaults: Mapping[str, Any], name: str) -> None:
    """Raises PassError where MLIR cannot read the text."""
    from torch_mlir import ir

    from tvm_ext.mlir.lowering import cause, read_text

    try:
        with ir.Context():
            read_text(Template(text).safe_substitute(defaults))
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise PassError(
            f"MLIR cannot read the text of pass '{name}' ({cause(error)}); expected a "
            "pipeline, steps of the transform dialect, or patterns of PDL: correct it"
        ) from error
