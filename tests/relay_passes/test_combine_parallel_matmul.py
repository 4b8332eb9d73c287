"""Before and after IR, equal numbers, and refusals of CombineParallelMatmul."""

import numpy as np
import pytest
from conv_modules import apply, bindings, kernels, module, operators, run
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.combine_parallel_matmul import CombineParallelMatmul
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.spans import origins_of

op = relax.op
N, L = (tirx.Var(name, "int64") for name in "nl")
combined = apply(CombineParallelMatmul())


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def heads(emit, value, number, size, lead, axes=(0, 2, 1, 3)):
    return emit(op.permute_dims(emit(op.reshape(value, [*lead, number, size])), list(axes)))


def three_products(numbers=(2, 1, 1), biases=(True, True, False), lead=(N, L), dtype="float32"):
    """Query, key and value of 4 columns a head."""

    def body(emit, x):
        found = []
        for seed, (number, has_bias) in enumerate(zip(numbers, biases, strict=True)):
            weight = draw(6, 4 * number, seed=seed).astype(dtype)
            value = emit(op.matmul(x, relax.const(weight)))
            if has_bias:
                value = emit(op.add(value, relax.const(draw(4 * number, seed=seed).astype(dtype))))
            found.append(heads(emit, value, number, 4, lead))
        return found

    return body


def expected(x, numbers, biases):
    found = []
    for seed, (number, has_bias) in enumerate(zip(numbers, biases, strict=True)):
        value = x @ draw(6, 4 * number, seed=seed)
        value = value + draw(4 * number, seed=seed) if has_bias else value
        found.append(value.reshape(*x.shape[:2], number, 4).transpose(0, 2, 1, 3))
    return found


@pytest.mark.extended
@pytest.mark.parametrize("biases", [(True, True, False), (False, False, False)], ids=str)
def test_one_product_and_kernels_that_read_heads(biases):
    mod = module([N, L, 6], three_products(biases=biases))
    with recording() as decisions:
        new = combined(mod)
    steps = ["matmul", "add"] if any(biases) else ["matmul"]
    assert operators(new) == [*steps, "call_tir", "call_tir", "call_tir"]
    assert len(kernels(new)) == 3
    assert {d.reason for d in decisions if d.applied} == {"one of 3 products computed as one"}
    x = draw(2, 5, 6)
    for got, wanted in zip(run(new, x), expected(x, (2, 1, 1), biases), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def keras_heads(bias_shape=(2, 4)):
    """keras.layers.MultiHeadAttention: the bias is one of heads, and an axis of 1 is moved."""

    def body(emit, x):
        found = []
        for seed, axes in enumerate([(0, 3, 1, 2, 4), (0, 3, 2, 4, 1), (0, 2, 1, 3, 4)]):
            product = emit(op.matmul(x, relax.const(draw(6, 8, seed=seed))))
            made = emit(op.reshape(product, [N, L, 2, 4]))
            made = emit(op.add(made, relax.const(draw(*bias_shape, seed=seed))))
            wider = emit(op.expand_dims(made, [1 + seed]))
            found.append(emit(op.permute_dims(wider, list(axes))))
        return found

    return body


@pytest.mark.extended
def test_bias_of_heads_and_axes_of_one():
    mod = module([N, L, 6], keras_heads())
    new = combined(mod)
    assert operators(new) == ["matmul", "add", *["call_tir", "reshape"] * 3]
    x = draw(2, 5, 6)
    for got, wanted in zip(run(new, x), run(mod, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_bias_of_one_number_for_each_head_is_left_alone():
    mod = module([N, L, 6], keras_heads((2, 1)))
    assert structural_equal(combined(mod), mod)


def test_the_product_has_the_origins_of_all():
    new = combined(module([2, 5, 6], three_products(biases=(False,) * 3, lead=(2, 5))))
    names = origins_of(bindings(new)[0].var)
    assert {"node0", "node3", "node6"} <= set(names)


def test_products_of_a_flattened_input():
    """A Gemm has rows of all batches, which the reshape takes apart."""
    new = combined(module([10, 6], three_products(lead=(2, 5))))
    assert operators(new) == ["matmul", "add", "reshape", *["call_tir"] * 3]
    x = draw(10, 6)
    wanted = expected(x.reshape(2, 5, 6), (2, 1, 1), (True, True, False))
    for got, one in zip(run(new, x), wanted, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-5)


def test_casts_behind_the_products_are_one():
    def body(emit, x):
        wide = emit(op.astype(x, "float32"))
        products = [emit(op.matmul(wide, relax.const(draw(6, 8, seed=s)))) for s in (1, 2)]
        return [heads(emit, emit(op.astype(p, "float16")), 2, 4, (2, 5)) for p in products]

    new = combined(module([2, 5, 6], body, "float16"))
    assert operators(new) == ["astype", "matmul", "astype", "call_tir", "call_tir"]


def other_reader(emit, x):
    product = emit(op.matmul(x, relax.const(draw(6, 8, seed=1))))
    other = emit(op.matmul(x, relax.const(draw(6, 8, seed=2))))
    return [heads(emit, product, 2, 4, (2, 5)), emit(op.nn.silu(other))]


def read_twice(emit, x):
    products = [emit(op.matmul(x, relax.const(draw(6, 8, seed=s)))) for s in (1, 2)]
    return [*(heads(emit, p, 2, 4, (2, 5)) for p in products), emit(op.tanh(products[0]))]


def other_inputs(emit, x):
    inputs = [x, emit(op.tanh(x))]
    products = [emit(op.matmul(one, relax.const(draw(6, 8)))) for one in inputs]
    return [heads(emit, product, 2, 4, (2, 5)) for product in products]


def computed_weights(emit, x):
    """Quantised weights are dequantised by an operator."""
    weights = [relax.const(np.ones((6, 8), "int8")), relax.const(np.zeros((6, 8), "int8"))]
    products = [emit(op.matmul(x, emit(op.astype(w, "float32")))) for w in weights]
    return [heads(emit, product, 2, 4, (2, 5)) for product in products]


def shared_weight(emit, x):
    weight = relax.const(draw(6, 8))
    products = [emit(op.matmul(one, weight)) for one in (x, x, emit(op.tanh(x)))]
    return [heads(emit, product, 2, 4, (2, 5)) for product in products]


@pytest.mark.parametrize(
    "body", [other_reader, read_twice, other_inputs, computed_weights, shared_weight]
)
def test_left_alone(body):
    mod = module([2, 5, 6], body)
    assert structural_equal(combined(mod), mod)


def split_of_product(emit, x, read=None):
    """GPT-2: one product, whose result is split."""
    product = emit(op.matmul(x, relax.const(draw(6, 24))))
    parts = emit(op.split(product, 3, axis=-1))
    fields = [emit(relax.TupleGetItem(parts, index)) for index in range(3)]
    made = [heads(emit, field, 2, 4, (N, L), (0, 2, 3, 1)) for field in fields[1:]]
    return [*made, read(emit, fields[0]) if read else heads(emit, fields[0], 2, 4, (N, L))]


def test_fields_of_a_split_are_read_of_the_whole():
    new = combined(module([N, L, 6], split_of_product))
    assert operators(new) == ["matmul", *["call_tir"] * 3]
    x = draw(2, 5, 6)
    parts = np.split(x @ draw(6, 24), 3, axis=-1)
    orders = (0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 3, 1)
    made = [p.reshape(2, 5, 2, 4).transpose(o) for p, o in zip(parts, orders, strict=True)]
    for got, wanted in zip(run(new, x), [*made[1:], made[0]], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_split_with_another_reader_stays():
    mod = module([N, L, 6], lambda emit, x: split_of_product(emit, x, lambda e, f: e(op.tanh(f))))
    assert structural_equal(combined(mod), mod)
