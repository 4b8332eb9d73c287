"""Storage of symbolic size is allocated in few sizes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tvm_ext.passes.round_storage import RoundStorage, limited, rounded_up
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import bindings_of

SIZES = [0, 1, 2, 3, 4, 5, 8, 9, 12, 31, 32, 33, 1000, 4097, 2**31 + 1, 3 * 2**40 + 1]


def _computed(change: Callable[[Any], Any], sizes: list[int]) -> list[int]:
    given = te.placeholder((len(sizes),), "int64")
    made = te.compute(given.shape, lambda place: change(given[place]))
    built = tvm.compile(te.create_prim_func([given, made]), target="llvm")
    result = tvm.runtime.tensor(np.zeros(len(sizes), np.int64))
    built(tvm.runtime.tensor(np.array(sizes, np.int64)), result)
    return result.numpy().tolist()


def _expected(size: int, steps: int) -> int:
    """The smallest of the allowed sizes that holds ``size``."""
    allowed = (2**power // steps * part for power in range(60) for part in range(steps, 2 * steps))
    return next(one for one in allowed if one >= size and one >= steps)


@pytest.mark.parametrize("steps", [1, 4])
def test_the_next_allowed_size_is_taken(steps: int) -> None:
    assert _computed(lambda size: rounded_up(size, steps), SIZES) == [
        _expected(size, steps) for size in SIZES
    ]


def test_what_overflows_is_more_than_a_machine_has() -> None:
    sizes = [0, 3, 1 << 20, 1 << 32, 3 << 40, (1 << 63) - 1]
    wanted = [min(size * size * 4, 1 << 48) for size in sizes]
    assert _computed(lambda size: limited(size * size * 4), sizes) == wanted


@I.ir_module
class TwoStorages:
    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        fixed = R.vm.alloc_storage(
            R.shape([12]), R.prim_value(0), R.dtype("uint8"), R.str("global")
        )
        _ = R.vm.kill_object(fixed)
        open_ = R.vm.alloc_storage(
            R.shape([n * 4]), R.prim_value(0), R.dtype("uint8"), R.str("global")
        )
        second = R.vm.alloc_tensor(open_, R.prim_value(0), R.shape([n]), R.dtype("float32"))
        return second


def test_storage_of_fixed_size_stays() -> None:
    after = RoundStorage()(TwoStorages)
    fixed, open_ = (
        binding.value.args[0].values[0]
        for binding in bindings_of(after["main"])
        if operator_name(binding.value) == "relax.vm.alloc_storage"
    )
    assert int(fixed) == 12
    assert type(open_).__name__ == "BitwiseAnd"
