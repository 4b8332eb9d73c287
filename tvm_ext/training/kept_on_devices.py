"""What a step on several devices takes from the one before: each device has its own.

They are equal behind each step, but for the sums of gradients within one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_ext.distributed.sharded_model import ShardedModel
from tvm_ext.kept_tensors import KeptTensors


class KeptOnDevices:
    """Arrays by the names of the programs' parameters, which devices are given for a first run.

    Parameters
    ----------
    models : sequence of ShardedModel
        The programs, which run on the processes of the first.
    arrays : mapping of name to array
        The first values.
    changed : sequence of sequence of str
        For each program those whose next values are the last results of a run.
    """

    def __init__(
        self,
        models: Sequence[ShardedModel],
        arrays: Mapping[str, np.ndarray],
        changed: Sequence[Sequence[str]],
    ) -> None:
        self._model, *others = models
        for one in others:
            self._model.join(one)
        self._changed = tuple(changed)
        self._first = KeptTensors(arrays)
        self._is_given = False

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the first device."""
        return self._first.arrays

    def replace(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on with these arrays, and with the others as they are."""
        self._first = KeptTensors({**self._first.arrays, **arrays})
        self._is_given = False

    def run(
        self, inputs: Mapping[str, Any], place: int, cleared: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """One run of a program on the other inputs, with zeros in ``cleared``.

        Raises RunError where a device has ended.
        """
        if not self._is_given:
            self._first, self._is_given = self._model.keep(self._first.arrays, self._changed), True
        return self._model.run_kept(inputs, place, cleared)
