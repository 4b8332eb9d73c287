"""Cost models by name."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tvm.s_tir import meta_schedule as ms

from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.hardware.description import CpuDescription, Description, GpuDescription
from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tuning.cost_models.guarded import Guarded, Note
from tvm_ext.tuning.errors import TuningError
from tvm_ext.tuning.target_key import target_key


# Imported when they are made: a package that is missing is one model's failure.
def _xgboost(machine: Description) -> Any:
    from tvm_ext.tuning.cost_models.xgboost_model import XGBoostModel

    if isinstance(machine, MeshDescription):
        raise TypeError(f"it knows CPUs and GPUs, and '{machine.name}' is neither")
    return XGBoostModel(machine)


def _predictor(machine: Description) -> Any:
    from tvm_ext.tuning.cost_models.predictor_model import PredictorModel

    return PredictorModel(_cpu(machine))


def _analytic(machine: Description) -> Any:
    if isinstance(machine, MeshDescription):
        from tvm_ext.tuning.cost_models.mesh_model import MeshModel

        return MeshModel(machine)
    if isinstance(machine, GpuDescription):
        from tvm_ext.tuning.cost_models.gpu_model import GpuModel

        return GpuModel(machine)
    from tvm_ext.tuning.cost_models.analytic_model import AnalyticModel

    return AnalyticModel(_cpu(machine))


def _random(machine: Description) -> Any:
    return ms.cost_model.RandomModel(seed=0)


def _cpu(machine: Description) -> CpuDescription:
    if not isinstance(machine, CpuDescription):
        raise TypeError(f"it knows CPUs only, and '{machine.name}' is none")
    return machine


_MODELS: dict[str, Callable[[Description], Any]] = {
    "xgboost": _xgboost,
    "predictor": _predictor,
    "analytic": _analytic,
    "random": _random,
}

# What models that learn keep beside the records.
_FILES = {"xgboost": "xgboost-{}.npz", "predictor": "predictor-{}.json"}

MODEL_NAMES = tuple(_MODELS)
"""What ``choose_model`` knows."""


def model_name(name: str) -> str:
    """``name`` if there is such a model. Raises TuningError if not."""
    if name not in _MODELS:
        raise TuningError(f"unknown cost model '{name}'; {nearest_hint(name, MODEL_NAMES)}")
    return name


def choose_model(name: str, machine: Description, folder: Path, note: Note) -> Guarded:
    """The model called ``name``, with what it learned for this target in earlier sessions.

    One that fails is replaced by the analytic model, and that one by random scores.

    Parameters
    ----------
    name : str
        One of ``MODEL_NAMES``.
    machine : Description
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
    chain = [(one, partial(_MODELS[one], machine)) for one in names]
    model = Guarded(chain, note, model_file(name, machine, folder))
    model.recall()
    return model


def model_file(name: str, machine: Description, folder: Path) -> Path | None:
    """Where a model keeps what it learned; None for one that learns nothing."""
    if name not in _FILES:
        return None
    key = target_key(dict(machine.tvm_target().export()))
    return folder / _FILES[name].format(hashlib.sha256(key.encode()).hexdigest()[:8])
