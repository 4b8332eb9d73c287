"""Runs the passes of a stage and notes what each took, changed and decided."""

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from tvm_ext.compiler.graph_analysis import ModuleCounter
from tvm_ext.configs.decision import Decision
from tvm_ext.configs.errors import FAILED
from tvm_ext.configs.progress import tell
from tvm_ext.errors import (
    REPORT_IT,
    ConfigError,
    DefectWarning,
    PassError,
    RecordsError,
    ScheduleRefusedError,
    own_words,
)
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import PassStep
from tvm_ext.passes.registry import Level, PassEntry, users_words
from tvm_ext.relay_passes.binding_rewriter import forget_views_except, sharing_views
from tvm_ext.relay_passes.graph_pass import raised_in_pass, recording
from tvm_ext.relay_passes.spans import bindings_of, origins_of, relax_functions
from tvm_ext.report.records import ModuleCounts, PassRecord
from tvm_ext.tensor_spec import InputShapes, freezing_hint, listed

# TVM's block builder and its tags of operators keep what they are building in one place of the
# process: one thread at a time imports or runs a pass. Others generate code meanwhile.
BUILDER_LOCK = threading.RLock()

# Parts of a large module are tried no longer than this.
_SECONDS = 10.0
_OURS = ("built-in", "tvm")
# What says itself what to do, and what is no fault of a pass.
_HANDED_ON = (ScheduleRefusedError, RecordsError, ConfigError, MemoryError, KeyboardInterrupt)


@dataclass(frozen=True)
class PassFailure:
    """A pass and the module on which it may fail.

    Attributes
    ----------
    entry : PassEntry
        The pass as it is registered.
    run : callable
        The pass itself.
    mod : tvm.IRModule
        What it was given.
    inputs : InputShapes
        The sizes of the model's inputs.
    """

    entry: PassEntry
    run: Callable[[tvm.IRModule], tvm.IRModule]
    mod: tvm.IRModule
    inputs: InputShapes

    def may_be_left_out(self, raised: Exception | None) -> bool:
        """Whether the module as it was is compiled instead: the pass is ours, and may be disabled.

        An interrupt comes back from TVM as an error without a text.
        """
        is_failure = raised is None or bool(str(raised))
        return is_failure and self.entry.source in _OURS and not self.entry.required

    def error(self, raised: Exception | None) -> PassError:
        """The error to raise: for what the pass raised, or for a module that is not well-formed."""
        name = self.entry.name
        # An interrupt comes back from TVM as an error without a text: nothing is run again then.
        nodes = failing_nodes(self.run, self.mod) if raised is None or str(raised) else []
        where = f" on '{listed(nodes)}'" if nodes else ""
        reason = "it left a module that is not well-formed" if raised is None else ""
        if self.entry.source not in _OURS:
            return PassError(
                f"pass '{name}' failed{where}: {reason or users_words(raised)}; expected a valid "
                f"module: correct the pass, leave it out (--disable-pass {name}), or look at the "
                "IR with --dump-ir"
            )
        # An expected error of a pass, say for a wrong option, says itself what to do.
        reason = reason or own_words(raised)
        found = f"bug in tvm-ext: pass '{name}' failed{where}{f': {reason}' if reason else ''}"
        if self.may_be_left_out(raised):
            return PassError(
                f"{found}, and was left out: the program may be slower; expected a valid module: "
                f"{REPORT_IT}",
                defect=True,
            )
        return PassError(
            f"{found}; expected a valid module: {freezing_advice(self.inputs)}try --opt-level 0, "
            f"and {REPORT_IT}",
            defect=True,
        )


def freezing_advice(inputs: InputShapes) -> str:
    """The first of two remedies, where a model has sizes that can be frozen."""
    hint = freezing_hint(inputs)
    return f"{hint}, or " if hint else ""


def is_well_formed(mod: tvm.IRModule) -> bool:
    """Whether TVM's own check finds no fault in the module."""
    return bool(relax.analysis.check_well_formed(mod, check_ty=False))


def failing_nodes(run: Callable[[tvm.IRModule], tvm.IRModule], mod: tvm.IRModule) -> list[str]:
    """Names of the nodes on which a pass fails by themselves.

    Each call of the module is made a module of its own, in which the pass runs again. None is named
    where no part alone fails, or where all of them do, so that it is no node's fault.
    """
    begun = time.monotonic()
    found: list[str] = []
    passed, tried = False, 0
    for names, part in _parts(mod):
        if (found and passed) or time.monotonic() - begun > _SECONDS:
            break
        failed = _fails(run, part)
        tried += 1
        passed |= not failed
        found = found or (list(names) if failed else [])
    return found if passed or tried == 1 else []


def _fails(run: Callable[[tvm.IRModule], tvm.IRModule], part: tvm.IRModule) -> bool:
    try:
        return not is_well_formed(run(part))
    except Exception:  # noqa: BLE001
        return True


def _parts(mod: tvm.IRModule) -> Iterator[tuple[tuple[str, ...], tvm.IRModule]]:
    """The calls of a module, each as a module, with the names of their nodes."""
    for func in relax_functions(mod).values():
        if "Primitive" in (func.attrs or {}):
            continue
        for binding in bindings_of(func):
            if isinstance(binding.value, relax.Call):
                part = _alone(mod, binding)
                if part is not None:
                    yield origins_of(binding.var), part


def _alone(mod: tvm.IRModule, binding: relax.VarBinding) -> tvm.IRModule | None:
    """A module whose ``main`` is just this binding; None where it cannot stand alone."""
    params, renaming = [], _Renaming()
    for var in relax.analysis.free_vars(binding.value):
        params.append(relax.Var(str(var.name), var.ty, var.span))
        renaming.set_var_remap(var, params[-1])
    inner = relax.DataflowVar("value", binding.var.ty, binding.var.span)
    result = relax.Var("result", binding.var.ty, binding.var.span)
    try:
        value = renaming.visit_expr(binding.value)
        bindings = [relax.VarBinding(inner, value), relax.VarBinding(result, inner)]
        body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
        main = relax.Function(params, body, binding.var.ty)
        symbols = relax.analysis.free_symbolic_vars(main)
        if symbols:
            sizes = relax.Var("sizes", relax.ShapeType(list(symbols)))
            main = relax.Function([sizes, *params], body, binding.var.ty)
        others = {var: func for var, func in mod.functions.items() if str(var.name_hint) != "main"}
        name = tvm.ir.GlobalVar("main")
        part = tvm.IRModule({name: main.with_attr("global_symbol", "main"), **others})
        return part if is_well_formed(part) else None
    except Exception:  # noqa: BLE001
        # Not every part is a module: then it is not the one that is looked for.
        return None


@mutator
class _Renaming(PyExprMutator):
    """Replaces variables; which, is said with ``set_var_remap``."""


def _are_equal(mod: tvm.IRModule, other: tvm.IRModule) -> bool:
    """Whether two modules say the same; most of their functions are the same objects."""
    if mod.same_as(other):
        return True
    own, others = ({v.name_hint: f for v, f in one.functions.items()} for one in (mod, other))
    if own.keys() != others.keys() or not structural_equal(mod.attrs, other.attrs):
        return False
    return all(f.same_as(others[n]) or structural_equal(f, others[n]) for n, f in own.items())


class PassRunner:
    """Runs stages one after the other and keeps a record of every pass.

    Parameters
    ----------
    dump_dir : Path, optional
        Folder into which TVM's DumpIR writes the module after each pass.

    Attributes
    ----------
    records : list[PassRecord]
        What each pass did.
    inputs : InputShapes
        The sizes of the model's inputs, for messages.

    Raises
    ------
    ConfigError
        The folder cannot be made.
    """

    def __init__(self, dump_dir: Path | None = None) -> None:
        self.records: list[PassRecord] = []
        self.inputs: InputShapes = {}
        self._counter = ModuleCounter()
        self._instruments: list[object] = []
        if dump_dir is not None:
            self._instruments.append(_dump_instrument(dump_dir))

    def run(
        self, steps: Sequence[PassStep], mod: tvm.IRModule, extra: Sequence[object] = ()
    ) -> tvm.IRModule:
        """Runs the steps in their order; ``extra`` instruments look on.

        Each runs by itself: what one ``tvm.transform.Sequential`` leaves out or adds on its own
        could not be told apart from its neighbours.

        Raises
        ------
        PassError
            A pass of a user, or one that no program can do without, raised or left a module that
            is not well-formed; the message names it. Another pass of ours is left out, with a
            DefectWarning.
        """
        passes = [None if step.skipped else step.make() for step in steps]
        with (
            tvm.transform.PassContext(opt_level=3, instruments=[*self._instruments, *extra]),
            recording() as decisions,
            sharing_views(),
        ):
            counts = self._counter.counts(mod)
            for step, made in zip(steps, passes, strict=True):
                name, level = step.entry.name, step.entry.level
                if made is None:
                    skipped = PassRecord(name, level, 0.0, False, 0, 0, step.skipped, [], counts)
                    self.records.append(skipped)
                    continue
                first = len(decisions)
                with BUILDER_LOCK:
                    begun = time.perf_counter()
                    after = self._applied(step, made, mod)
                    seconds = time.perf_counter() - begun
                if after is None:
                    failed = PassRecord(name, level, seconds, False, 0, 0, FAILED, [], counts)
                    self.records.append(failed)
                    del decisions[first:]
                    continue
                changed = not _are_equal(after, mod)
                if not after.same_as(mod):
                    forget_views_except(after)
                counts = self._counter.counts(after) if changed else counts
                self.records.append(_record(step, seconds, changed, decisions[first:], counts))
                mod = after
        return mod

    def has_users_change(self, *levels: Level) -> bool:
        """Whether a pass that is not ours, of one of these levels, changed the module."""
        changes = [one for one in self.records if one.changed and one.level in levels]
        return any(registry.get(one.name).source not in _OURS for one in changes)

    def _applied(
        self, step: PassStep, made: tvm.transform.Pass, mod: tvm.IRModule
    ) -> tvm.IRModule | None:
        """The module behind the pass; None where it failed and is left out, with a warning."""
        # A pass that asks for others ahead of it gets them from a Sequential only.
        runnable = tvm.transform.Sequential([made]) if made.info.required else made
        tell(f"pass {step.entry.name}")
        failure = PassFailure(step.entry, runnable, mod, self.inputs)
        raised_in_pass()
        try:
            after = runnable(mod)
        except Exception as error:  # noqa: BLE001  (the model compiles without the pass)
            raised = raised_in_pass()
            if isinstance(raised, _HANDED_ON):
                raise raised from None
            _leave_out(failure, error)
            return None
        if not after.same_as(mod) and not is_well_formed(after):
            _leave_out(failure, None)
            return None
        return after


def _leave_out(failure: PassFailure, raised: Exception | None) -> None:
    """Warns of a pass that failed where the model is compiled without it, and raises elsewhere."""
    error = failure.error(raised)
    if not failure.may_be_left_out(raised):
        raise error from raised
    warning = DefectWarning(str(error))
    warning.__cause__ = raised
    warnings.warn(warning, stacklevel=2)


def _dump_instrument(folder: Path) -> object:
    instrument = tvm.ir.instrument.DumpIR(folder, refresh=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} for dumps cannot be made ({error.strerror}); expected a folder "
            "or a free name: choose another path"
        ) from error
    return instrument


def _record(
    step: PassStep,
    seconds: float,
    changed: bool,
    decisions: list[Decision],
    counts: ModuleCounts,
) -> PassRecord:
    applied = sum(d.applied for d in decisions)
    return PassRecord(
        step.entry.name,
        step.entry.level,
        seconds,
        changed,
        applied,
        len(decisions) - applied,
        "",
        decisions,
        counts,
    )
