"""Before and after IR, numbers and refusals of ActivationLookupTables."""

import numpy as np
import pytest
from conv_modules import module
from side_by_side import Rewrite, assert_all_same
from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.activation_lookup_tables import ActivationLookupTables
from tvm_ext.relay_passes.spans import bindings_of

op = relax.op
MACHINE = resolve_target("avx512-amx")


def rewrite(mod, machine=MACHINE):
    with compiling_for(machine):
        new = ActivationLookupTables()(mod)
        assert structural_equal(ActivationLookupTables()(new), new)
    assert relax.analysis.check_well_formed(new)
    return new


def number(value):
    return relax.const(np.float32(value))


def dequantized(emit, x, zero, scale):
    return emit(op.multiply(emit(op.subtract(emit(op.astype(x, "float32")), zero)), scale))


def quantized(emit, x, scale, dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    steps = emit(op.clip(emit(op.round(emit(op.divide(x, number(scale))))), low, high))
    return emit(op.astype(steps, dtype))


def swish(dtype, sigmoid_dtype=None, shape=(2, 7, 5)):
    """As exporters write it: the sigmoid quantised, then the product."""

    def body(emit, x):
        real = dequantized(emit, x, number(3), number(0.05))
        share = quantized(emit, emit(op.sigmoid(real)), 1 / 255, sigmoid_dtype or "uint8")
        product = emit(op.multiply(real, dequantized(emit, share, number(0), number(1 / 255))))
        return [quantized(emit, product, 0.04, dtype)]

    return module(shape, body, dtype)


def calls(mod):
    return [
        binding.value
        for binding in bindings_of(mod["main"])
        if isinstance(binding.value, relax.Call) and str(binding.value.op.name) == "relax.call_tir"
    ]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_quantised_activation_is_one_table(dtype) -> None:
    mod = swish(dtype)
    new = rewrite(mod)
    outputs = [mod["main"].body.body for mod in (mod, new)]
    # The sigmoid is looked up too, and nobody asks for it any more.
    last = calls(new)[-1]
    assert [list(map(int, arg.ty.shape)) for arg in last.args[1].fields] == [[2, 7, 5], [256]]
    assert all(str(output.ty.dtype) == dtype for output in outputs)
    every = np.resize(np.arange(256, dtype=np.uint8).view(dtype), (2, 7, 5))
    assert_all_same({"swish": Rewrite(mod, new, [[every]])})


def test_two_tensors_make_no_table() -> None:
    def body(emit, x):
        other = emit(op.permute_dims(x, [1, 0]))
        both = [dequantized(emit, one, number(1), number(0.1)) for one in (x, other)]
        return [quantized(emit, emit(op.sigmoid(emit(op.add(*both)))), 1 / 255, "uint8")]

    mod = module((6, 6), body, "uint8")
    assert structural_equal(rewrite(mod), mod)


@pytest.mark.parametrize("target", ["avx512-amx", "avx2"])
def test_what_takes_less_time_than_a_look_up_stays(target) -> None:
    def body(emit, x):
        return [emit(op.astype(emit(op.maximum(emit(op.astype(x, "int16")), const)), "uint8"))]

    const = relax.const(np.int16(4))
    mod = module((6, 6), body, "uint8")
    assert structural_equal(rewrite(mod, resolve_target(target)), mod)


def test_operands_by_channel_stay() -> None:
    def body(emit, x):
        scales = relax.const(np.arange(1, 7, dtype=np.float32))
        real = emit(op.multiply(emit(op.astype(x, "float32")), scales))
        return [quantized(emit, emit(op.tanh(real)), 1 / 127, "int8")]

    mod = module((6, 6), body, "int8")
    assert structural_equal(rewrite(mod), mod)


def test_other_targets_stay_as_they_are() -> None:
    mod = swish("uint8")
    assert structural_equal(rewrite(mod, resolve_target("nvidia-h200")), mod)
