"""Cost models by name."""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.configs.errors import TuningError, last_line, nearest_hint
from tvm_ext.hardware.backend import all_backends
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tuning.backend import Tuning, tuning_of
from tvm_ext.tuning.candidate import Candidate
from tvm_ext.tuning.logs.database_files import target_key

# A cost model that may fail without ending a session: ranking is a help, not a need.


Note = Callable[[str], Any]
"""Takes one line for the user."""

Chain = Sequence[tuple[str, Callable[[], Any]]]
"""Names of models, each with a function that makes it, the one that is wanted first."""


@derived_object
class GuardedCostModel(ms.cost_model.PyCostModel):
    """The first model of a chain; when it fails, for good, the next one. It never raises.

    A model fails when it cannot be made, raises an error, or returns a score that is no number or
    not one score for each candidate. When all have failed, all candidates are equally good.

    Parameters
    ----------
    chain : Chain
        The models.
    note : Note
        Gets one line for each failure.
    file : Path, optional
        Where the first model keeps what it learns.

    Attributes
    ----------
    name : str
        The model that is in use; empty when all have failed.
    """

    def __init__(self, chain: Chain, note: Note, file: Path | None = None) -> None:
        super().__init__()
        self._left = list(chain)
        self._note = note
        self._file = file
        self._model: Any = None
        self.name = ""
        self._failed: list[str] = []
        self._is_first = True
        self._next()
        self._tell()

    @property
    def model(self) -> Any:
        """What is in use; None when all have failed."""
        return self._model

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """The scores of the first model that gives any."""
        return self._first_scores(len(candidates), lambda model: model.predict(context, candidates))

    def scores_of(self, context: ms.TuneContext, candidates: Sequence[Candidate]) -> np.ndarray:
        """The same for our candidates.

        A model that looks at loops only gets just these: to make a schedule of loops again takes
        longer than all else, where their indices are not simple.
        """

        def ask(model: Any) -> np.ndarray:
            if hasattr(model, "score_modules"):
                scores: np.ndarray = model.score_modules([one.modelled for one in candidates])
                return scores
            return model.predict(context, [one.measure_candidate() for one in candidates])

        return self._first_scores(len(candidates), ask)

    @property
    def learns(self) -> bool:
        """Whether measured times change anything."""
        return self._model is not None and getattr(self._model, "learns", True)

    @property
    def exact(self) -> bool:
        """Whether a trial gives just what the scores say."""
        return self._model is not None and getattr(self._model, "exact", False)

    def _first_scores(self, count: int, ask: Callable[[Any], np.ndarray]) -> np.ndarray:
        scores = np.zeros(count)
        while count and self._model is not None:
            try:
                scores = _checked(ask(self._model), count)
                break
            except Exception as error:  # noqa: BLE001
                # Whatever goes wrong in a model is its own fault.
                self._fail(error)
        self._tell()
        return scores

    def update(
        self,
        context: ms.TuneContext,
        candidates: list[ms.MeasureCandidate],
        results: list[ms.runner.RunnerResult],
    ) -> None:
        """Tells the model; one that fails over it is replaced."""
        if self._model is not None:
            try:
                self._model.update(context, candidates, results)
            except Exception as error:  # noqa: BLE001
                self._fail(error)
        self._tell()

    def load(self, path: str) -> None:
        """What the model learned before; a file that is of no use is left out, with a note."""
        if self._model is not None:
            try:
                self._model.load(path)
            except Exception as error:  # noqa: BLE001
                self._note(f"what the cost model learned before is left out: {last_line(error)}")

    def save(self, path: str) -> None:
        """Writes what the model learned; where that is not possible, a note."""
        if self._model is not None:
            try:
                self._model.save(path)
            except Exception as error:  # noqa: BLE001
                self._note(f"what the cost model learned is not kept: {last_line(error)}")

    def recall(self) -> None:
        """Loads its file, if there is one."""
        if self._file is not None and self._is_first and self._file.is_file():
            self.load(str(self._file))

    def remember(self) -> None:
        """Writes its file, if it is to have one."""
        if self._file is not None and self._is_first:
            self.save(str(self._file))

    def _fail(self, error: Exception) -> None:
        self._failed.append(f"'{self.name}' ({last_line(error)})")
        self._is_first = False
        self._next()

    def _next(self) -> None:
        """Makes the next model that can be made."""
        self._model, self.name = None, ""
        while self._left and self._model is None:
            self.name, make = self._left.pop(0)
            try:
                self._model = make()
            except Exception as error:  # noqa: BLE001
                self._failed.append(f"'{self.name}' ({last_line(error)})")
                self.name, self._is_first = "", False

    def _tell(self) -> None:
        """One line for all that failed since the last one."""
        if self._failed:
            instead = f"by '{self.name}'" if self.name else "by chance"
            failed = " and ".join(self._failed)
            self._note(f"cost model {failed} failed; candidates are ranked {instead} instead")
            self._failed.clear()


def _checked(scores: Any, count: int) -> np.ndarray:
    found = np.asarray(scores, dtype=np.float64)
    if found.shape != (count,):
        raise ValueError(f"{found.size} scores for {count} candidates")
    if not np.isfinite(found).all():
        raise ValueError("a score that is no number")
    return found


def model_name(name: str) -> str:
    """``name`` if a backend has such a model. Raises TuningError if none has."""
    known = {one for backend in all_backends() for one in backend.part(Tuning).cost_models}
    if name not in known:
        raise TuningError(f"unknown cost model '{name}'; {nearest_hint(name, known)}")
    return name


def _make(name: str, machine: MachineDescription) -> Any:
    models = tuning_of(machine).cost_models
    if name not in models:
        raise TypeError(f"it is not for targets such as '{machine.name}'")
    return models[name].made(machine)


def choose_model(
    name: str, machine: MachineDescription, folder: Path, note: Note
) -> GuardedCostModel:
    """The model called ``name``, with what it learned for this target in earlier sessions.

    One that fails is replaced by the analytic model, and that one by random scores.

    Parameters
    ----------
    name : str
        One of the backend's cost models.
    machine : MachineDescription
        What the kernels are scheduled for.
    folder : Path
        The records; ``remember()`` of what is returned writes the model's file there.
    note : Note
        Gets one line when a model fails.

    Raises
    ------
    TuningError
        There is no such model.
    """
    model_name(name)
    names = dict.fromkeys((name, *(other for other in ("analytic", "random") if name != "random")))
    chain = [(one, partial(_make, one, machine)) for one in names]
    model = GuardedCostModel(chain, note, model_file(name, machine, folder))
    model.recall()
    return model


def model_file(name: str, machine: MachineDescription, folder: Path) -> Path | None:
    """Where a model keeps what it learned; None for one that learns nothing."""
    models = tuning_of(machine).cost_models
    if name not in models or not models[name].file:
        return None
    key = target_key(dict(machine.tvm_target().export()))
    return folder / models[name].file.format(hashlib.sha256(key.encode()).hexdigest()[:8])
