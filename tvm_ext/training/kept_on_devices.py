"""What a step on several devices takes from the one before: each device has its own, all equal."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_ext.distributed.sharded_model import ShardedModel
from tvm_ext.kept_tensors import KeptTensors


class KeptOnDevices:
    """Arrays by the names of the program's parameters, which the devices are given for a first run.

    Parameters
    ----------
    model : ShardedModel
        The program.
    arrays : mapping of name to array
        The first values.
    changed : sequence of str
        Those whose next values are the last results of a run.
    """

    def __init__(
        self, model: ShardedModel, arrays: Mapping[str, np.ndarray], changed: Sequence[str]
    ) -> None:
        self._model, self._changed = model, tuple(changed)
        self._first = KeptTensors(arrays)
        self._is_given = False

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the first device."""
        return self._first.arrays

    def replace(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on with these arrays."""
        self._first, self._is_given = KeptTensors(arrays), False

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """One run on the other inputs; raises RunError where a device has ended."""
        if not self._is_given:
            self._first, self._is_given = self._model.keep(self._first.arrays, self._changed), True
        return self._model.run_kept(inputs)
