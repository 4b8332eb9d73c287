"""Ranks candidates by the performance predictor, which learns from all kernels alike."""

from collections.abc import Sequence

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.kernel_identity import kernel_hash
from tvm_ext.tuning.cost_models.measured import seconds_of
from tvm_ext.tuning.cost_models.performance_predictor import PerformancePredictor, Sample
from tvm_ext.tuning.loop_analysis.lowered import NotLowered
from tvm_ext.tuning.loop_features import loop_features


@derived_object
class PredictorModel(ms.cost_model.PyCostModel):
    """The predictor as a model that MetaSchedule can ask.

    Parameters
    ----------
    machine : CpuDescription
        What the kernels are scheduled for.

    Attributes
    ----------
    predictor : PerformancePredictor
        What it asks.
    """

    def __init__(self, machine: CpuDescription) -> None:
        super().__init__()
        self.machine = machine
        self.predictor = PerformancePredictor()
        self._features: dict[str, np.ndarray] = {}

    def load(self, path: str) -> None:
        """Takes in a file of the predictor. Raises RecordsError."""
        self.predictor.load(path)
        self._features.update({one.candidate: one.features for one in self.predictor.samples})

    def save(self, path: str) -> None:
        """Writes the predictor's file. Raises OutputPathError."""
        self.predictor.save(path)

    def update(
        self,
        context: ms.TuneContext,
        candidates: list[ms.MeasureCandidate],
        results: list[ms.runner.RunnerResult],
    ) -> None:
        """Adds the candidates that have a time."""
        kernel = kernel_hash(context.mod)
        samples = []
        for one, result in zip(candidates, results, strict=True):
            seconds = seconds_of(result)
            if seconds is not None:
                name = kernel_hash(one.sch.mod)
                features = self.features_of(name, one.sch.mod)
                samples.append(Sample(features, seconds, kernel, name))
        self.predictor.add(samples)

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """Calls a microsecond, predicted; 0 for what will not be built."""
        return self.score_modules([one.sch.mod for one in candidates])

    def score_modules(self, mods: Sequence[tvm.IRModule]) -> np.ndarray:
        """The same for scheduled kernels that are named "main"."""
        if not mods:
            return np.zeros(0)
        rows = [self._row(mod) for mod in mods]
        known = [position for position, row in enumerate(rows) if row is not None]
        scores = np.zeros(len(mods))
        if known:
            features = np.array([rows[position] for position in known])
            scores[known] = 1e-6 / self.predictor.predict_seconds(features)
        return scores

    def _row(self, mod: tvm.IRModule) -> np.ndarray | None:
        try:
            return self.features_of(kernel_hash(mod), mod)
        except NotLowered:
            return None

    def features_of(self, name: str, mod: tvm.IRModule) -> np.ndarray:
        """Loop features of the candidate whose hash is ``name``.

        Kept: it is ranked before it is measured, often more than once, and what was loaded needs no
        second look.
        """
        if name not in self._features:
            self._features[name] = loop_features(mod, self.machine)
        return self._features[name]
