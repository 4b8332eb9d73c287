"""TVM's boosted trees over its own features of each store, for sessions of a few dozen trials.

``ms.cost_model.XGBModel`` does the work, one for each kernel: trained on several kernels at once,
as TVM does it, it ranked the candidates of each worse (rank correlation 0.4 instead of 0.6 after
14 trials). What is mended: candidates that failed or have no time are left out (TVM takes them for
the best where all have failed, and stops at a time of zero); a kernel without features gets a
score; before there are samples enough the analytic model ranks, not NumPy's global generator; and
what was learned is kept as plain numbers, from which the trees are grown again (TVM's file is a
pickle, which runs whatever code it holds, and cannot be read back when it holds no trees).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.cost_model.xgb_model import FeatureGroup, XGBConfig, XGBModel

from tvm_ext.configs.atomic_file import replacing
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.recorded_schedule import kernel_hash
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.cost_models.base import seconds_of

# Samples of a kernel below which the analytic model ranks better.
_WARM_UP = 16

_CONFIG = XGBConfig(max_depth=6, eta=0.2, seed=43, nthread=1)
_EARLY_STOP = 20


@derived_object
class XGBoostModel(ms.cost_model.PyCostModel):
    """TVM's boosted trees, one for each kernel; the module's docstring says what is mended.

    Parameters
    ----------
    machine : MachineDescription
        What the kernels are scheduled for.
    """

    def __init__(self, machine: MachineDescription) -> None:
        # It is found missing here, not in the middle of a search.
        import xgboost  # noqa: F401

        super().__init__()
        self._kernels: dict[str, _KernelModel] = {}
        self._analytic: Any = tuning_of(machine).cost_models["analytic"].made(machine)

    def update(
        self,
        context: ms.TuneContext,
        candidates: list[ms.MeasureCandidate],
        results: list[ms.runner.RunnerResult],
    ) -> None:
        """Adds the candidates that have a time, and trains when there are enough new ones."""
        pairs = zip(candidates, results, strict=True)
        timed = [(one, result) for one, result in pairs if seconds_of(result) is not None]
        if timed:
            model = self._kernels.setdefault(kernel_hash(context.mod), _KernelModel())
            model.update(context, [one for one, _ in timed], [result for _, result in timed])

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """The kernel's best time so far over each candidate's; before that, as the analytic one."""
        model = self._kernels.get(kernel_hash(context.mod))
        if model is None or model.booster is None or model.data_size < _WARM_UP:
            return self._analytic.predict(context, candidates)
        return model.scores(context, candidates)

    def save(self, path: str) -> None:
        """Writes all samples. Raises OutputPathError."""
        groups = {
            name: group for name, model in self._kernels.items() for group in model.data.values()
        }
        columns: dict[str, np.ndarray] = {"kernels": np.array(list(groups), dtype=np.str_)}
        for number, group in enumerate(groups.values()):
            columns[f"group{number}"] = np.array(group.group_hash)
            columns[f"rows{number}"] = np.array([len(rows) for rows in group.features])
            columns[f"features{number}"] = np.concatenate(group.features)
            columns[f"seconds{number}"] = np.asarray(group.costs)
        with replacing(path) as file:
            np.savez_compressed(file, **columns)  # type: ignore[arg-type]

    def load(self, path: str) -> None:
        """Takes the samples of a file that ``save`` wrote for those of its kernels, and trains.

        Raises ValueError or OSError for any other file.
        """
        with np.load(Path(path), allow_pickle=False) as file:
            self._kernels.update(_read(file))


class _KernelModel(XGBModel._cls):
    """TVM's model for one kernel."""

    def __init__(self) -> None:
        super().__init__(
            config=_CONFIG, num_warmup_samples=1, early_stopping_rounds=_EARLY_STOP, verbose_eval=0
        )

    def scores(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """One score for each candidate; 0 for one that has no features."""
        extracted = self.extractor.extract_from(context, candidates)
        features = [one.numpy().astype("float32") for one in extracted]
        known = [position for position, rows in enumerate(features) if len(rows)]
        scores = np.zeros(len(candidates))
        if known:
            scores[known] = self._predict([features[position] for position in known])
        return scores

    def fill(self, group: FeatureGroup) -> None:
        """Makes ``group`` its samples, and trains."""
        self.data[group.group_hash] = group
        self.data_size = self.last_train_size = len(group.features)
        self._train(group.features, group.min_cost / group.costs)


def _read(file: Any) -> Iterator[tuple[str, _KernelModel]]:
    if "kernels" not in file:
        raise ValueError("no file of this model")
    for number, name in enumerate(file["kernels"].tolist()):
        model = _KernelModel()
        rows, features = file[f"rows{number}"], file[f"features{number}"]
        seconds = file[f"seconds{number}"]
        if features.shape != (rows.sum(), model.extractor.feature_vector_length):
            raise ValueError(f"features of {features.shape} for {rows.sum()} stores")
        if len(rows) != len(seconds) or not len(rows) or not (seconds > 0).all():
            raise ValueError(f"{len(seconds)} times for {len(rows)} candidates")
        parts = np.split(features.astype("float32"), np.cumsum(rows)[:-1])
        group = FeatureGroup(str(file[f"group{number}"]), list(parts), seconds.astype("float32"))
        model.fill(group)
        yield name, model
