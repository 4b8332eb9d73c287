"""Small data to fit estimators with."""

from typing import Any

import numpy as np

FEATURES, ROWS = 4, 60


def labelled(label: str) -> tuple[Any, Any]:
    """Rows of numbers, with a label each: ``words``, ``classes``, ``binary`` or ``numbers``."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((ROWS, FEATURES)).astype(np.float32)
    values = rows[:, 0] + 0.5 * rows[:, 1] + 0.1 * generator.standard_normal(ROWS)
    if label == "numbers":
        return rows, np.exp(values).astype(np.float32)
    if label == "binary":
        return rows, (values > 0).astype(np.int64)
    classes = np.digitize(values, (-0.5, 0.5))
    return rows, classes if label == "classes" else np.array(["low", "middle", "high"])[classes]


def words() -> tuple[Any, Any]:
    """Short texts, with a label each."""
    texts = np.array(["a red fox", "the blue sea", "red red sky", "the fox and the sea"] * 5)
    return texts, np.array(["animal", "water", "air", "animal"] * 5)
