"""TVM's boosted trees over its own features of each store, for sessions of a few dozen trials.

What differs from ``ms.cost_model.XGBModel``, which does the work: candidates that failed or have no
time are left out (their kernel's best is unknown to it when all of them fail, and it takes them for
good ones), a kernel without features gets a score, draws before there is a model do not touch
NumPy's global generator, and a saved model is a file of plain numbers that is trained again when it
is loaded (TVM's is a pickle, which runs whatever code it holds, and cannot be read back when it was
saved before the first training).
"""

from pathlib import Path
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.cost_model.xgb_model import FeatureGroup, XGBConfig, XGBModel

from tvm_ext.configs.atomic_file import replacing
from tvm_ext.tuning.cost_models.measured import seconds_of

# Fewer samples rank no better than a draw.
_WARM_UP = 16

_CONFIG = XGBConfig(max_depth=6, eta=0.2, seed=43, nthread=1)
_EARLY_STOP = 20


@derived_object
class XGBoostModel(XGBModel._cls):
    """See the module's text.

    Parameters
    ----------
    seed : int
        Of the draws before there are samples enough.
    """

    def __init__(self, seed: int = 0) -> None:
        # It is found missing here, not in the middle of a search.
        import xgboost  # noqa: F401

        super().__init__(
            config=_CONFIG,
            num_warmup_samples=_WARM_UP,
            early_stopping_rounds=_EARLY_STOP,
        )
        self._generator = np.random.default_rng(seed)

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
            super().update(context, [one for one, _ in timed], [result for _, result in timed])

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """The best time of the kernel so far over each candidate's, predicted."""
        if self.booster is None or self.data_size < self.num_warmup_samples:
            return self._generator.random(len(candidates))
        extracted = self.extractor.extract_from(context, candidates)
        features = [one.numpy().astype("float32") for one in extracted]
        known = [position for position, rows in enumerate(features) if len(rows)]
        scores = np.zeros(len(candidates))
        if known:
            scores[known] = self._predict([features[position] for position in known])
        return scores

    def save(self, path: str) -> None:
        """Writes all samples. Raises OutputPathError."""
        columns: dict[str, np.ndarray] = {"groups": np.array(list(self.data), dtype=np.str_)}
        for number, group in enumerate(self.data.values()):
            columns[f"rows{number}"] = np.array([len(rows) for rows in group.features])
            columns[f"features{number}"] = np.concatenate(group.features)
            columns[f"seconds{number}"] = np.asarray(group.costs)
        with replacing(path) as file:
            np.savez_compressed(file, **columns)  # type: ignore[arg-type]

    def load(self, path: str) -> None:
        """Adds the samples of a file that ``save`` wrote, and trains.

        Raises ValueError or OSError for any other file.
        """
        with np.load(Path(path), allow_pickle=False) as file:
            found = list(_groups(file, self._columns()))
        for group in found:
            known = self.data.get(group.group_hash)
            if known is None:
                self.data[group.group_hash] = group
            else:
                known.append(group.features, group.costs)
            self.data_size += len(group.features)
        if self.data_size:
            self.last_train_size = self.data_size
            features = [rows for group in self.data.values() for rows in group.features]
            scores = [group.min_cost / group.costs for group in self.data.values()]
            self._train(features, np.concatenate(scores))

    def _columns(self) -> int:
        return int(self.extractor.feature_vector_length)


def _groups(file: Any, columns: int) -> "list[FeatureGroup]":
    """Reads what ``save`` wrote."""
    found = []
    try:
        for number, name in enumerate(file["groups"].tolist()):
            rows, features = file[f"rows{number}"], file[f"features{number}"]
            seconds = file[f"seconds{number}"]
            if features.ndim != 2 or features.shape[1] != columns:
                raise ValueError(f"{features.shape[-1]} features a store, expected {columns}")
            if rows.sum() != len(features) or len(rows) != len(seconds) or not len(rows):
                raise ValueError("numbers of samples that do not fit together")
            parts = np.split(features.astype("float32"), np.cumsum(rows)[:-1])
            found.append(FeatureGroup(str(name), list(parts), seconds.astype("float32")))
    except KeyError as error:
        raise ValueError(f"no file of this model ({error})") from error
    return found
