"""XGBoost and LightGBM, as onnxmltools writes them."""

from collections.abc import Callable, Mapping
from typing import Any

from .entry import Entry, floats
from .tables import FEATURES, labelled

ROWS = ({"rows": 5}, {"rows": 1})
_XGBOOST = {"n_estimators": 10, "max_depth": 4}
_LIGHTGBM = {"n_estimators": 10, "num_leaves": 7, "min_child_samples": 5, "verbose": -1}

# Library, class, parameters, labels.
MODELS: Mapping[str, tuple[str, str, Mapping[str, Any], str]] = {
    "XGBClassifier": ("xgboost", "XGBClassifier", _XGBOOST, "classes"),
    "XGBClassifier (two classes)": ("xgboost", "XGBClassifier", _XGBOOST, "binary"),
    "XGBRegressor": ("xgboost", "XGBRegressor", _XGBOOST, "numbers"),
    "XGBRegressor (Poisson)": (
        "xgboost",
        "XGBRegressor",
        {**_XGBOOST, "objective": "count:poisson"},
        "numbers",
    ),
    "XGBRFClassifier": ("xgboost", "XGBRFClassifier", _XGBOOST, "binary"),
    "LGBMClassifier": ("lightgbm", "LGBMClassifier", _LIGHTGBM, "classes"),
    "LGBMClassifier (two classes)": ("lightgbm", "LGBMClassifier", _LIGHTGBM, "binary"),
    "LGBMRegressor": ("lightgbm", "LGBMRegressor", _LIGHTGBM, "numbers"),
    "LGBMRegressor (Poisson)": (
        "lightgbm",
        "LGBMRegressor",
        {**_LIGHTGBM, "objective": "poisson"},
        "numbers",
    ),
}


def _fitted(library: str, name: str, options: Mapping[str, Any], label: str) -> Callable[[], Any]:
    def build() -> Any:
        import importlib

        return getattr(importlib.import_module(library), name)(**options).fit(*labelled(label))

    return build


ENTRIES = tuple(
    Entry(
        name,
        "boosted trees",
        ("onnxmltools",),
        _fitted(*description),
        {"X": floats("rows", FEATURES)},
        ROWS,
    )
    for name, description in MODELS.items()
)
