"""Dismisses candidates before they are built, by what the performance predictor says of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.candidate import Candidate
from tvm_ext.tuning.cost_models.choose import model_file
from tvm_ext.tuning.cost_models.performance_predictor import PredictorModel, Sample

Note = Callable[[str], object]


class Pruner:
    """Learns from the trials of all sessions on a folder.

    Those that a session has not saved, because it was killed, it learns when it is told of them.
    If the predictor fails, or xgboost is missing, it says so once and dismisses nothing.

    Parameters
    ----------
    machine : CpuDescription
        What is tuned for.
    folder : Path
        The records; what was learned is kept beside them.
    note : Note
        Gets one line on a failure.
    """

    def __init__(self, machine: CpuDescription, folder: Path, note: Note) -> None:
        self._file = model_file("predictor", machine, folder)
        self._note = note
        self._model: PredictorModel | None = None
        with self._optional():
            self._model = PredictorModel(machine)
            if self._file is not None and self._file.exists():
                self._model.load(str(self._file))

    def kept(self, candidates: Sequence[Candidate], best_seconds: float | None) -> list[Candidate]:
        """Those that are worth building; all of them while there is little to go by."""
        worth = [True] * len(candidates)
        with self._optional():
            if self._model is not None and candidates and best_seconds is not None:
                rows = [self._model.known_features(one.hash, one.modelled) for one in candidates]
                known = [position for position, row in enumerate(rows) if row is not None]
                features = np.array([rows[position] for position in known])
                kept = self._model.predictor.keep(features, best_seconds) if known else ()
                for position, flag in zip(known, kept, strict=True):
                    worth[position] = bool(flag)
        return [one for one, flag in zip(candidates, worth, strict=True) if flag]

    def learn(self, results: Iterable[tuple[Candidate, float | None]]) -> None:
        """Takes in what was measured, in this session or before it.

        What it knows already costs nothing but a look at its time, which may be a newer one.
        """
        with self._optional():
            if self._model is not None:
                self._model.predictor.add(
                    Sample(
                        self._model.features_of(one.hash, one.modelled),
                        seconds,
                        one.task.hash,
                        one.hash,
                    )
                    for one, seconds in results
                    if seconds is not None
                )

    def save(self) -> None:
        """Writes what was learned beside the records."""
        with self._optional():
            if self._model is not None and self._file is not None:
                self._model.save(str(self._file))

    def quality(self) -> str:
        """How well kernels that it has not seen are ranked, in one line; empty if unknown."""
        found = ""
        with self._optional():
            if self._model is not None and self._model.predictor.samples:
                found = str(self._model.predictor.quality())
        return found

    @contextmanager
    def _optional(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001
            # Dismissing candidates saves time; a session must not end over it.
            self._model = None
            self._note("no candidates are dismissed by prediction: the predictor failed")


class NoPruner:
    """Dismisses nothing.

    For a mesh, whose times are a model's answers: asking is cheap. And for GPUs, whose loops the
    predictor does not know: what cannot run there is refused by the build.
    """

    def kept(self, candidates: Sequence[Candidate], best_seconds: float | None) -> list[Candidate]:
        """All of them."""
        return list(candidates)

    def learn(self, results: Iterable[tuple[Candidate, float | None]]) -> None:
        """There is nothing to learn."""

    def save(self) -> None:
        """There is nothing to save."""

    def quality(self) -> str:
        """There is nothing to rank by."""
        return ""


def new_pruner(machine: MachineDescription, folder: Path, note: Note) -> Pruner | NoPruner:
    """What dismisses candidates for a machine; see ``Pruner``."""
    return tuning_of(machine).new_pruner(machine, folder, note) or NoPruner()
