"""Runs the passes of a stage and notes what each took, changed and decided."""

import time
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm_ffi import structural_equal

from tvm_ext.configs.progress import tell
from tvm_ext.errors import ConfigError
from tvm_ext.open_dimensions import InputShapes
from tvm_ext.passes.failed_pass import PassFailure, is_well_formed
from tvm_ext.passes.pipeline import Step
from tvm_ext.relay_passes.pass_log import PassDecision, recording
from tvm_ext.report.records import Decision, PassRecord


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
        self._instruments: list[object] = []
        if dump_dir is not None:
            self._instruments.append(_dump_instrument(dump_dir))

    def run(
        self, steps: Sequence[Step], mod: tvm.IRModule, extra: Sequence[object] = ()
    ) -> tvm.IRModule:
        """Runs the steps in their order; ``extra`` instruments look on.

        Each runs by itself: what one ``tvm.transform.Sequential`` leaves out or adds on its own
        could not be told apart from its neighbours.

        Raises
        ------
        PassError
            A pass raised, or left a module that is not well-formed; the message names it.
        """
        passes = [None if step.skipped else step.make() for step in steps]
        with (
            tvm.transform.PassContext(opt_level=3, instruments=[*self._instruments, *extra]),
            recording() as decisions,
        ):
            for step, made in zip(steps, passes, strict=True):
                name, level = step.entry.name, step.entry.level
                if made is None:
                    self.records.append(PassRecord(name, level, 0.0, False, 0, 0, step.skipped, []))
                    continue
                first = len(decisions)
                begun = time.perf_counter()
                after = self._applied(step, made, mod)
                seconds = time.perf_counter() - begun
                changed = not after.same_as(mod) and not structural_equal(after, mod)
                self.records.append(_record(step, seconds, changed, decisions[first:]))
                mod = after
        return mod

    def _applied(self, step: Step, made: tvm.transform.Pass, mod: tvm.IRModule) -> tvm.IRModule:
        # A pass that asks for others ahead of it gets them from a Sequential only.
        runnable = tvm.transform.Sequential([made]) if made.info.required else made
        tell(f"pass {step.entry.name}")
        failure = PassFailure(step.entry, runnable, mod, self.inputs)
        try:
            after = runnable(mod)
        except Exception as error:
            raise failure.error(error) from error
        if not after.same_as(mod) and not is_well_formed(after):
            raise failure.error(None)
        return after


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
    step: Step, seconds: float, changed: bool, decided: Sequence[PassDecision]
) -> PassRecord:
    # A pass speaks for itself only; a nested one has its own name in the log.
    decisions = [Decision(d.pass_name, d.applied, d.where, d.reason) for d in decided]
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
    )
