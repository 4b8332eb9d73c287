"""ConvBnReluFold: narrow types, and results wider than the weights."""

import numpy as np
from fold_modules import (
    assert_same_numbers,
    bn,
    build,
    const,
    fold,
    nn,
    op_names,
    rand,
)
from tvm import relax


def test_float16_with_batch_norm_in_float32() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, const(4, 3, 3, 3, dtype="float16")))
        wide = builder.emit(relax.op.astype(conv, "float32"))
        return relax.op.astype(builder.emit(bn(builder, wide, 4)), "float16")

    mod = build((1, 3, 5, 7), body, "float16")
    new, _ = fold(mod)
    assert op_names(new) == ["conv2d", "add"]
    assert new["main"].ret_ty.dtype == "float16"
    assert_same_numbers(mod, new, rand(1, 3, 5, 7, dtype="float16"))


def test_float16_epsilon_is_not_rounded_to_zero() -> None:
    weight = np.full((1, 1, 1, 1), 2.0**-10, "float16")
    parameters = [relax.const(np.full(1, value, "float16")) for value in (1, 0, 0, 0)]

    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, relax.const(weight)))
        normal = builder.emit(
            nn.batch_norm(conv, *parameters, axis=1, epsilon=2.0**-28, training=False)
        )
        return relax.TupleGetItem(normal, 0)

    new, _ = fold(build((1, 1, 1, 1), body, "float16"))
    folded = new["main"].body.blocks[0].bindings[0].value.args[1].value.numpy()
    assert folded.dtype == np.float16
    assert folded.item() == 2.0**4


def test_wider_result_than_weights() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weight = const(4, 3, 3, 3, dtype="float16")
        return bn(builder, builder.emit(nn.conv2d(x, weight, out_dtype="float32")), 4)

    new, _ = fold(build((1, 3, 5, 7), body, "float16"))
    conv, add = (binding.value for binding in new["main"].body.blocks[0].bindings)
    assert (conv.args[1].ty.dtype, add.args[1].ty.dtype) == ("float16", "float32")


def test_bfloat16() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        conv = builder.emit(nn.conv2d(x, relax.const(rand(4, 3, 1, 1), "bfloat16")))
        return relax.op.multiply(conv, relax.const(rand(1, 4, 1, 1), "bfloat16"))

    new, _ = fold(build((1, 3, 5, 7), body, "bfloat16"))
    assert op_names(new) == ["conv2d"]
    assert new["main"].ret_ty.dtype == "bfloat16"
