"""Modules that between them hold what the graph passes look for, and where each pass stands."""

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.passes import registry

nn = relax.op.nn


Emit = Callable[[relax.Expr], relax.Var]


Body = Callable[[Emit, relax.Var], list[relax.Var]]


# Where a pass stands in the pipelines: what has to run before it makes sense.
DECOMPOSED = ("DecomposeOpsForInference",)


LEGALIZED = (*DECOMPOSED, "LegalizeOps")


ANNOTATED = (*LEGALIZED, "AnnotateTIROpPattern")


RUNS_AFTER = {
    "LegalizeOps": DECOMPOSED,
    "AnnotateTIROpPattern": LEGALIZED,
    "RewriteDataflowReshape": LEGALIZED,
    "FuseOperators": ANNOTATED,
    "FuseTIR": (*ANNOTATED, "FuseOperators"),
    "MultiOutputFusion": (*ANNOTATED, "FuseOperators", "FuseTIR"),
    "SinkReshapes": ("ConvTransposeToConv", "GroupedConvolution"),
}


def rand(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng([seed, *shape])
    if dtype.startswith("int"):
        return draw.integers(-9, 10, shape).astype(dtype)
    return draw.uniform(-1, 1, shape).astype(dtype)


def const(*shape: int, seed: int = 0) -> relax.Expr:
    return relax.const(rand(*shape, seed=seed))


def batch_norm(emit: Emit, data: relax.Expr, channels: int, epsilon: float = 1e-5) -> relax.Var:
    gamma, beta, mean = (const(channels, seed=seed) for seed in (1, 2, 3))
    variance = relax.const(np.abs(rand(channels, seed=4)) + np.float32(0.5))
    made = nn.batch_norm(data, gamma, beta, mean, variance, axis=1, epsilon=epsilon, training=False)
    return emit(relax.TupleGetItem(emit(made), 0))


def conv_chain(emit: Emit, x: relax.Var) -> list[relax.Var]:
    """Conv, BN, ReLU twice: other channels and another epsilon, so that no kernel may be shared."""
    y = emit(nn.conv2d(x, const(4, 3, 3, 3), padding=1))
    y = emit(nn.relu(batch_norm(emit, y, 4)))
    y = emit(nn.conv2d(y, const(5, 4, 3, 3), padding=1))
    return [emit(nn.relu(batch_norm(emit, y, 5, epsilon=1e-2)))]


def depthwise(emit: Emit, x: relax.Var) -> list[relax.Var]:
    y = emit(nn.conv2d(x, const(3, 1, 3, 3), padding=1, groups=3))
    y = emit(nn.relu(batch_norm(emit, y, 3)))
    y = emit(nn.conv2d(y, const(4, 3, 1, 1)))
    return [emit(nn.max_pool2d(y, (2, 2), strides=(2, 2)))]


def transposed_conv(emit: Emit, x: relax.Var) -> list[relax.Var]:
    y = emit(nn.conv2d_transpose(x, const(3, 4, 2, 2), strides=(2, 2)))
    return [emit(nn.leakyrelu(batch_norm(emit, y, 4), 0.1))]


def grouped_conv(emit: Emit, x: relax.Var) -> list[relax.Var]:
    """Transposed in groups as well, with a residual behind and a second reader."""
    y = emit(nn.conv2d(x, const(6, 1, 3, 3), padding=1, groups=3))
    y = emit(nn.relu(emit(relax.op.add(y, const(1, 6, 1, 1)))))
    z = emit(nn.conv2d_transpose(y, const(6, 2, 3, 3), padding=(1, 1), groups=3))
    z = emit(relax.op.add(y, z))
    up = emit(nn.conv2d_transpose(z, const(6, 8, 3, 3), strides=(2, 2), groups=2))
    return [emit(relax.op.multiply(up, emit(relax.op.sigmoid(up)))), z]


def residual_and_concat(emit: Emit, x: relax.Var) -> list[relax.Var]:
    """One weight for two convolutions, and inner values with second readers."""
    weight = const(3, 3, 3, 3)
    first = emit(nn.conv2d(x, weight, padding=1))
    normal = batch_norm(emit, first, 3)
    second = emit(nn.conv2d(emit(nn.relu(normal)), weight, padding=1))
    total = emit(relax.op.add(second, first))
    return [emit(relax.op.concat([total, normal], axis=1))]


def gemm_with_transposes(emit: Emit, x: relax.Var) -> list[relax.Var]:
    transposed = emit(relax.op.permute_dims(x))
    y = emit(relax.op.matmul(transposed, emit(relax.op.permute_dims(const(6, 5)))))
    y = emit(nn.relu(emit(relax.op.add(y, const(6)))))
    y = emit(relax.op.matmul(y, const(6, 3)))
    y = emit(relax.op.permute_dims(emit(relax.op.add(y, const(3)))))
    return [emit(relax.op.permute_dims(emit(relax.op.permute_dims(y))))]


def attention(emit: Emit, x: relax.Var) -> list[relax.Var]:
    heads = [
        emit(
            relax.op.permute_dims(
                emit(relax.op.reshape(emit(relax.op.matmul(x, const(6, 6, seed=s))), [1, 7, 2, 3])),
                axes=[0, 2, 1, 3],
            )
        )
        for s in (1, 2, 3)
    ]
    keys = emit(relax.op.permute_dims(heads[1], axes=[0, 1, 3, 2]))
    scores = emit(relax.op.matmul(heads[0], keys))
    scores = emit(nn.softmax(emit(relax.op.multiply(scores, relax.const(0.577, "float32")))))
    mixed = emit(relax.op.permute_dims(emit(relax.op.matmul(scores, heads[2])), [0, 2, 1, 3]))
    y = emit(relax.op.add(emit(relax.op.reshape(mixed, [1, 7, 6])), x))
    y = emit(nn.layer_norm(y, const(6), const(6, seed=9), axes=[-1]))
    return [emit(nn.gelu(y))]


def symbolic_batch(emit: Emit, x: relax.Var) -> list[relax.Var]:
    y = emit(nn.relu(emit(relax.op.add(emit(relax.op.matmul(x, const(5, 6))), const(6)))))
    return [emit(relax.op.sum(y, axis=1)), y]


def several_outputs(emit: Emit, x: relax.Var) -> list[relax.Var]:
    """A tuple operator, dead code, and the same value twice."""
    parts = emit(relax.op.split(x, 2, axis=1))
    left, right = (emit(relax.TupleGetItem(parts, i)) for i in (0, 1))
    emit(relax.op.exp(left))
    same, again = emit(relax.op.tanh(right)), emit(relax.op.tanh(right))
    return [left, emit(relax.op.add(same, again)), same]


def integers(emit: Emit, x: relax.Var) -> list[relax.Var]:
    y = emit(relax.op.add(x, relax.const(rand(4, 6, dtype="int64"), "int64")))
    y = emit(relax.op.maximum(y, relax.const(0, "int64")))
    taken = emit(relax.op.take(y, relax.const(np.array([2, 0]), "int64"), axis=0))
    kept = emit(relax.op.greater(y, x))
    return [emit(relax.op.astype(taken, "float32")), emit(relax.op.where(kept, y, x))]


def reshapes(emit: Emit, x: relax.Var) -> list[relax.Var]:
    y = emit(relax.op.reshape(emit(nn.relu(x)), [3, 8]))
    y = emit(relax.op.reshape(emit(relax.op.negative(y)), [2, 12]))
    return [emit(relax.op.reshape(y, [4, 6])), emit(relax.op.expand_dims(y, 0))]


def build(shape: list, body: Body, dtype: str = "float32") -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = body(builder.emit, x)
            outputs = [builder.emit_output(result) for result in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((4, 6), "float32"), flag: R.Tensor((), "bool")):
        with R.dataflow():
            a = R.nn.relu(x)
            b = R.add(a, a)
            R.output(b)
        if flag:
            c = R.reshape(b, (2, 12))
            d = R.exp(c)
            e = R.reshape(d, (4, 6))
            r = e
        else:
            f = R.permute_dims(b)
            g = R.permute_dims(f)
            h = R.tanh(g)
            r = h
        with R.dataflow():
            y = R.multiply(r, b)
            z = R.nn.relu(y)
            R.output(z)
        return z


IMAGE = [1, 3, 7, 9]


BATCH = tvm.tirx.Var("n", "int64")


# Name to the module and its inputs.
MODULES: dict[str, tuple[tvm.IRModule, list[np.ndarray]]] = {
    "conv chain": (build(IMAGE, conv_chain), [rand(*IMAGE)]),
    "depthwise": (build(IMAGE, depthwise), [rand(*IMAGE)]),
    "transposed conv": (build(IMAGE, transposed_conv), [rand(*IMAGE)]),
    "grouped conv": (build(IMAGE, grouped_conv), [rand(*IMAGE)]),
    "residual and concat": (build(IMAGE, residual_and_concat), [rand(*IMAGE)]),
    "gemm with transposes": (build([5, 7], gemm_with_transposes), [rand(5, 7)]),
    "attention": (build([1, 7, 6], attention), [rand(1, 7, 6)]),
    "symbolic batch": (build([BATCH, 5], symbolic_batch), [rand(3, 5)]),
    "several outputs": (build([4, 6], several_outputs), [rand(4, 6)]),
    "integers": (build([4, 6], integers, "int64"), [rand(4, 6, dtype="int64", seed=5)]),
    "reshapes": (build([4, 6], reshapes), [rand(4, 6)]),
    "then branch": (Branches, [rand(4, 6), np.array(True)]),
    "else branch": (Branches, [rand(4, 6), np.array(False)]),
}


def run_passes(mod: tvm.IRModule, *names: str) -> tvm.IRModule:
    return tvm.transform.Sequential([registry.get(name).make({}) for name in names])(mod)
