"""NonZero and Unique on the host: their results go to the device of the input."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_ext.cuda.program import HOST_FUNCTIONS, beside_input, register_host_results


@pytest.mark.parametrize("several", [False, True])
def test_results_are_copied_to_the_device(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    placed = []
    real = tvm.runtime.tensor

    def to(array: np.ndarray, device: Any = None) -> Any:
        placed.append(device)
        return real(array)

    result = real(np.arange(3))
    function = beside_input(lambda _: [result, result] if several else result)
    monkeypatch.setattr("tvm.runtime.tensor", to)
    device = tvm.device("cuda", 0)
    found = function(SimpleNamespace(device=device))
    assert placed == [device] * (2 if several else 1)
    for one in found if several else [found]:
        np.testing.assert_array_equal(one.numpy(), [0, 1, 2])


def test_the_functions_stay_what_they_are_on_a_cpu() -> None:
    assert relax.op.nonzero is not None
    register_host_results()
    register_host_results()
    x = tvm.runtime.tensor(np.array([[0, 2], [3, 0]], "float32"))
    assert all(tvm.get_global_func(name, allow_missing=True) for name in HOST_FUNCTIONS)
    found = tvm.get_global_func("relax.run.nonzero")(x)
    np.testing.assert_array_equal(found.numpy(), [[0, 1], [1, 0]])
    values = tvm.get_global_func("relax.run.unique")(x, True, False, False, False)
    np.testing.assert_array_equal(values.numpy(), [0, 2, 3])
