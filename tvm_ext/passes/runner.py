"""Runs the passes of a stage and notes what each took, changed and decided."""

import time
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.errors import PassError
from tvm_ext.passes.pipeline import Step
from tvm_ext.relay_passes.pass_log import PassDecision, recording
from tvm_ext.report.records import Decision, PassRecord


class PassRunner:
    """Runs stages one after the other and keeps a record of every pass.

    Parameters
    ----------
    dump_dir : Path, optional
        Folder into which TVM's DumpIR writes the module after each pass.
    """

    def __init__(self, dump_dir: Path | None = None) -> None:
        self.records: list[PassRecord] = []
        self._observer = _Observer()
        self._instruments: list[object] = [self._observer]
        if dump_dir is not None:
            self._instruments.append(tvm.ir.instrument.DumpIR(dump_dir, refresh=True))

    def run(
        self, steps: Sequence[Step], mod: tvm.IRModule, extra: Sequence[object] = ()
    ) -> tvm.IRModule:
        """Runs the steps as one ``tvm.transform.Sequential``; ``extra`` instruments look on.

        Raises
        ------
        PassError
            A pass raised, or left a module that is not well-formed; the message names it.
        """
        active = [step for step in steps if not step.skipped]
        if not steps:
            return mod
        self._observer.start([step.entry.name for step in active])
        sequence = tvm.transform.Sequential([step.make() for step in active], name="pipeline")
        with (
            tvm.transform.PassContext(opt_level=3, instruments=[*self._instruments, *extra]),
            recording() as decisions,
        ):
            self._observer.decisions = decisions
            try:
                mod = sequence(mod)
            except Exception as error:
                raise self._observer.pass_error(error) from error
        self._collect(steps)
        return mod

    def _collect(self, steps: Sequence[Step]) -> None:
        finished = iter(self._observer.finished)
        for step in steps:
            entry = step.entry
            if step.skipped:
                self.records.append(
                    PassRecord(entry.name, entry.level, 0.0, False, 0, 0, step.skipped, [])
                )
                continue
            seconds, changed, decided = next(finished)
            # A pass speaks for itself only; a nested one has its own name in the log.
            decisions = [Decision(d.pass_name, d.applied, d.where, d.reason) for d in decided]
            applied = sum(d.applied for d in decisions)
            refused = len(decisions) - applied
            self.records.append(
                PassRecord(
                    entry.name, entry.level, seconds, changed, applied, refused, "", decisions
                )
            )


@tvm.instrument.pass_instrument
class _Observer:
    """Sees every pass that TVM runs; counts those directly inside the pipeline's Sequential."""

    def __init__(self) -> None:
        self.decisions: list[PassDecision] = []
        self.finished: list[tuple[float, bool, list[PassDecision]]] = []
        self._names: list[str] = []
        self._open: list[str] = []
        self._begun = 0.0
        self._seen_decisions = 0
        self._before: tvm.IRModule | None = None
        self._problem = ""

    def start(self, names: list[str]) -> None:
        self.finished = []
        self._names = names
        self._open = []
        self._seen_decisions = 0
        self._problem = ""

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        self._open.append(str(info.name))
        if len(self._open) == 2:
            self._before = mod
            self._begun = time.perf_counter()

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        # A pass that raised inside another one, which caught it, never came to its end.
        while self._open and self._open.pop() != str(info.name):
            continue
        if len(self._open) != 1:
            return
        seconds = time.perf_counter() - self._begun
        decided = list(self.decisions[self._seen_decisions :])
        self._seen_decisions = len(self.decisions)
        changed = not mod.same_as(self._before) and not structural_equal(mod, self._before)
        if changed and not relax.analysis.check_well_formed(mod, check_ty=False):
            self._problem = "left a module that is not well-formed"
            raise ValueError(self._problem)
        self._before = None
        self.finished.append((seconds, changed, decided))

    def pass_error(self, error: Exception) -> PassError:
        name = self._names[min(len(self.finished), len(self._names) - 1)]
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = self._problem or (lines[-1][:300] if lines else type(error).__name__)
        return PassError(
            f"pass '{name}' failed: {reason}; expected a valid module: "
            f"compile without it (--disable-pass {name}) and look at the IR with --dump-ir"
        )
