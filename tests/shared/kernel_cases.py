"""Kernels of every family on sizes that are not round, as Relax expressions."""

from collections.abc import Callable
from dataclasses import dataclass

from lowering import Spec, f32
from tvm import relax
from tvm.relax.op import nn

op = relax.op


@dataclass(frozen=True)
class KernelCase:
    """An expression, the inputs it takes and the template that is to take its largest kernel."""

    expression: Callable[..., relax.Expr]
    inputs: tuple[Spec, ...]
    template: str


def _case(template: str, expression: Callable[..., relax.Expr], *inputs: Spec) -> KernelCase:
    return KernelCase(expression, inputs, template)


def conv_bias_relu(x: relax.Expr, w: relax.Expr, b: relax.Expr, **kwargs: object) -> relax.Expr:
    return nn.relu(op.add(nn.conv2d(x, w, **kwargs), b))


def nhwc(x: relax.Expr, w: relax.Expr, b: relax.Expr, **kwargs: object) -> relax.Expr:
    return conv_bias_relu(x, w, b, data_layout="NHWC", kernel_layout="HWIO", **kwargs)


def _nhwc(template, x, w, b, **kwargs):
    return _case(template, lambda *v: nhwc(*v, **kwargs), f32(*x), f32(*w), f32(*b))


def _nchw(template, x, w, b, **kwargs):
    return _case(template, lambda *v: conv_bias_relu(*v, **kwargs), f32(*x), f32(*w), f32(*b))


TILE = "register tile"
BLOCK = "blockwise"
ROWS = "softmax and norm"
REDUCE = "reduction"
VECTOR = "matrix times vector"
EACH = "elementwise"
TRANSPOSE = "transpose"
POOL = "pooling"
DEPTH = "depthwise convolution"

CONVOLUTIONS = {
    "conv nhwc": _nhwc(TILE, (1, 7, 9, 5), (3, 3, 5, 24), (24,), padding=(1, 1)),
    "conv nhwc 1x1": _nhwc(TILE, (1, 13, 7, 17), (1, 1, 17, 40), (40,)),
    "conv nhwc batch": _nhwc(TILE, (3, 5, 5, 3), (3, 3, 3, 19), (19,), padding=(1, 1)),
    "conv nhwc stride": _nhwc(TILE, (1, 13, 17, 3), (3, 3, 3, 80), (80,), strides=(2, 2)),
    "conv nhwc dilation": _nhwc(TILE, (1, 9, 9, 3), (3, 3, 3, 13), (13,), dilation=(2, 2)),
    "conv nhwc prime": _nhwc(TILE, (1, 5, 5, 3), (1, 1, 3, 97), (97,)),
    "conv nhwc one channel": _nhwc(BLOCK, (1, 7, 7, 3), (3, 3, 3, 1), (1,)),
    "conv nhwc grouped": _nhwc(BLOCK, (1, 7, 5, 6), (3, 3, 3, 14), (14,), groups=2),
    "conv nhwc depthwise": _nhwc(
        DEPTH, (1, 7, 9, 19), (3, 3, 1, 19), (19,), groups=19, padding=(1, 1)
    ),
    "conv nhwc depthwise stride": _nhwc(
        DEPTH, (1, 9, 9, 40), (5, 5, 1, 40), (40,), groups=40, strides=(2, 2)
    ),
    "conv nchw": _nchw(TILE, (1, 5, 7, 13), (17, 5, 3, 3), (1, 17, 1, 1), padding=(1, 1)),
    "conv nchw stride": _nchw(BLOCK, (2, 3, 13, 13), (7, 3, 3, 3), (1, 7, 1, 1), strides=(2, 2)),
    "conv nchw grouped": _nchw(TILE, (1, 6, 7, 19), (4, 3, 3, 3), (1, 4, 1, 1), groups=2),
    "conv nchw depthwise": _nchw(
        DEPTH, (1, 13, 7, 7), (13, 1, 3, 3), (1, 13, 1, 1), groups=13, padding=(1, 1)
    ),
    "conv nchw 1x1 map": _nchw(VECTOR, (1, 40, 1, 1), (17, 40, 1, 1), (1, 17, 1, 1)),
    "conv1d": _case(TILE, lambda x, w: nn.conv1d(x, w, padding=1), f32(1, 5, 19), f32(7, 5, 3)),
    "conv1d nwc": _case(
        TILE,
        lambda x, w: nn.conv1d(x, w, data_layout="NWC", kernel_layout="WIO"),
        f32(1, 17, 3),
        f32(3, 3, 24),
    ),
    "conv3d": _case(
        TILE, lambda x, w: nn.conv3d(x, w, padding=1), f32(1, 3, 5, 5, 7), f32(5, 3, 3, 3, 3)
    ),
    "conv3d ndhwc": _case(
        TILE,
        lambda x, w: nn.conv3d(x, w, data_layout="NDHWC", kernel_layout="DHWIO"),
        f32(1, 5, 5, 7, 3),
        f32(3, 3, 3, 3, 13),
    ),
    "conv transpose": _case(
        TILE,
        lambda x, w: nn.conv2d_transpose(x, w, strides=(2, 2), padding=(1, 1)),
        f32(1, 5, 7, 5),
        f32(5, 3, 3, 3),
    ),
    "conv half": _case(
        TILE,
        lambda x, w: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        ((1, 5, 5, 3), "float16"),
        ((3, 3, 3, 24), "float16"),
    ),
    "conv int8": _case(
        TILE,
        lambda x, w: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32"),
        ((1, 5, 5, 3), "int8"),
        ((3, 3, 3, 24), "int8"),
    ),
    "squeeze and excite": _case(
        TILE,
        lambda x, w, y: op.multiply(
            op.sigmoid(nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")), y
        ),
        f32(1, 1, 1, 5),
        f32(1, 1, 5, 24),
        f32(1, 7, 13, 24),
    ),
}


def _matmul(template, a, b, dtype="float32"):
    return _case(template, op.matmul, (a, dtype), (b, dtype))


MATMULS = {
    "matmul": _matmul(TILE, (17, 13), (13, 40)),
    "matmul 149": _matmul(TILE, (7, 5), (5, 149)),
    "matmul batched": _matmul(TILE, (3, 13, 7), (3, 7, 24)),
    "matmul heads": _matmul(TILE, (1, 3, 17, 5), (1, 3, 5, 17)),
    "matmul broadcast": _matmul(TILE, (3, 7, 5), (5, 19)),
    "matmul column": _matmul(VECTOR, (17, 40), (40, 1)),
    "matmul row": _matmul(TILE, (1, 19), (19, 80)),
    "matmul outer": _matmul(TILE, (13, 1), (1, 17)),
    "matmul vector": _matmul(TILE, (40,), (40, 24)),
    "matmul dot": _matmul(REDUCE, (97,), (97,)),
    "matmul one": _matmul(REDUCE, (1, 1), (1, 1)),
    "matmul half": _matmul(TILE, (5, 7), (7, 24), "float16"),
    "matmul double": _matmul(TILE, (5, 7), (7, 24), "float64"),
    "matmul int32": _matmul(TILE, (5, 7), (7, 24), "int32"),
    "matmul int64": _matmul(TILE, (5, 7), (7, 24), "int64"),
    "matmul transposed": _case(
        TILE, lambda a, b: op.matmul(a, op.permute_dims(b)), f32(7, 40), f32(13, 40)
    ),
    "dense gelu": _case(
        TILE,
        lambda a, w, b: nn.gelu(op.add(op.matmul(a, w), b)),
        f32(5, 13),
        f32(13, 40),
        f32(40),
    ),
    "dense relu": _case(
        TILE,
        lambda a, w, b: nn.relu(op.add(op.matmul(a, w), b)),
        f32(7, 13),
        f32(13, 24),
        f32(24),
    ),
    "dense residual": _case(
        TILE,
        lambda a, w, r: op.add(op.matmul(a, w), r),
        f32(19, 3),
        f32(3, 17),
        f32(19, 17),
    ),
}


def _reduce(template, function, shape, axis, dtype="float32", **kwargs):
    return _case(template, lambda x: function(x, axis=axis, **kwargs), (shape, dtype))


REDUCTIONS = {
    "max pool": _case(POOL, lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)), f32(1, 5, 13, 13)),
    "max pool nhwc": _case(
        POOL, lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"), f32(1, 13, 7, 19)
    ),
    "avg pool ceil": _case(
        POOL,
        lambda x: nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), ceil_mode=True),
        f32(1, 3, 13, 7),
    ),
    "avg pool padded": _case(
        POOL,
        lambda x: nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1), count_include_pad=True, layout="NHWC"),
        f32(1, 7, 7, 13),
    ),
    "global pool": _case(REDUCE, lambda x: nn.adaptive_avg_pool2d(x, (1, 1)), f32(1, 13, 7, 7)),
    "global pool nhwc": _case(
        REDUCE, lambda x: nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC"), f32(1, 7, 7, 24)
    ),
    "adaptive pool": _case(EACH, lambda x: nn.adaptive_avg_pool2d(x, (3, 2)), f32(1, 3, 7, 5)),
    "mean last": _reduce(REDUCE, op.mean, (5, 7, 149), 2),
    "mean keeps": _reduce(REDUCE, op.mean, (1, 24, 40), 2, keepdims=True),
    "sum first": _reduce(REDUCE, op.sum, (13, 40), 0),
    "sum middle": _reduce(REDUCE, op.sum, (5, 17, 24), 1),
    "sum all": _reduce(REDUCE, op.sum, (7, 19), None),
    "sum several": _reduce(REDUCE, op.sum, (3, 5, 7, 13), [0, 2]),
    "sum outer and inner": _reduce(REDUCE, op.sum, (3, 13, 80), [0, 2]),
    "max last": _reduce(REDUCE, op.max, (13, 97), 1),
    "min int": _reduce(REDUCE, op.min, (13, 19), 0, "int32"),
    "prod": _reduce(REDUCE, op.prod, (3, 24), 1),
    "sum int64": _reduce(REDUCE, op.sum, (3, 40), 1, "int64"),
    "argmax last": _reduce(REDUCE, op.argmax, (5, 19), 1),
    "argmax first": _reduce(REDUCE, op.argmax, (5, 19), 0),
    "argmin keeps": _reduce(REDUCE, op.argmin, (3, 7, 5), 1, keepdims=True),
    "variance": _reduce(REDUCE, op.variance, (3, 40), 1),
    "std first": _reduce(REDUCE, op.std, (7, 24), 0),
    "softmax last": _reduce(ROWS, nn.softmax, (5, 80), 1),
    "softmax prime": _reduce(ROWS, nn.softmax, (3, 149), 1),
    "softmax first": _reduce(ROWS, nn.softmax, (17, 24), 0),
    "softmax middle": _reduce(ROWS, nn.softmax, (2, 7, 5, 3), 1),
    "softmax one": _reduce(REDUCE, nn.softmax, (5, 1), 1),
    "log softmax": _reduce(ROWS, nn.log_softmax, (3, 17), 1),
    "layer norm": _case(
        ROWS, lambda x, g, b: nn.layer_norm(x, g, b, [-1]), f32(3, 5, 40), f32(40), f32(40)
    ),
    "rms norm": _case(ROWS, lambda x, g: nn.rms_norm(x, g, [-1]), f32(3, 5, 24), f32(24)),
    "instance norm": _case(
        ROWS,
        lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]),
        f32(2, 3, 5, 7),
        f32(3),
        f32(3),
    ),
    "group norm": _case(
        ROWS,
        lambda x, g, b: nn.group_norm(x, g, b, 3, 1, [2, 3]),
        f32(1, 6, 5, 7),
        f32(6),
        f32(6),
    ),
    "exponentials summed": _case(REDUCE, lambda x: op.sum(op.exp(x), axis=[1]), f32(7, 40)),
}

MOVES = {
    "concat inner": _case(
        EACH, lambda *v: op.concat(list(v), -1), f32(3, 5, 24), f32(3, 5, 40), f32(3, 5, 8)
    ),
    "concat inner odd": _case(
        EACH, lambda *v: op.concat(list(v), -1), f32(5, 3), f32(5, 7), f32(5, 1)
    ),
    "concat outer": _case(
        EACH, lambda *v: op.concat(list(v), 1), f32(1, 3, 5, 5), f32(1, 4, 5, 5), f32(1, 1, 5, 5)
    ),
    "concat first": _case(EACH, lambda *v: op.concat(list(v), 0), f32(3, 40), f32(13, 40)),
    "split": _case(EACH, lambda x: op.split(x, [5, 12], 1), f32(3, 24)),
    "split outer": _case(EACH, lambda x: op.split(x, 3, 0), f32(9, 13)),
    "slice": _case(
        EACH,
        lambda x: op.strided_slice(x, [1, 2], [1, 0], [13, 40], [2, 3]),
        f32(3, 17, 40),
    ),
    "slice dense": _case(EACH, lambda x: op.strided_slice(x, [1], [16], [40]), f32(5, 80)),
    "slice backwards": _case(EACH, lambda x: op.flip(x, 1), f32(5, 24)),
    "transpose": _case(TRANSPOSE, op.permute_dims, f32(13, 40)),
    "transpose nchw": _case(
        TRANSPOSE, lambda x: op.permute_dims(x, [0, 2, 3, 1]), f32(1, 17, 5, 7)
    ),
    "pad": _case(EACH, lambda x: nn.pad(x, [0, 0, 1, 2, 3, 1]), f32(3, 5, 13)),
    "pad outer": _case(EACH, lambda x: nn.pad(x, [0, 0, 1, 1, 0, 0]), f32(1, 5, 24)),
    "pad reflect": _case(EACH, lambda x: nn.pad(x, [0, 0, 2, 1], "reflect"), f32(3, 7)),
    "resize nearest": _case(
        EACH,
        lambda x: op.image.resize2d(
            x, (10, 14), method="nearest_neighbor", rounding_method="floor"
        ),
        f32(1, 3, 5, 7),
    ),
    "resize linear": _case(EACH, lambda x: op.image.resize2d(x, (13, 11)), f32(1, 3, 5, 7)),
    "resize nhwc": _case(
        EACH, lambda x: op.image.resize2d(x, (13, 11), layout="NHWC"), f32(1, 5, 7, 17)
    ),
    "take": _case(EACH, lambda x, i: op.take(x, i, 0), f32(7, 24), ((5,), "int64")),
    "take inner": _case(EACH, lambda x, i: op.take(x, i, 1), f32(7, 24), ((5,), "int32")),
    "gather elements": _case(
        EACH, lambda x, i: op.gather_elements(x, i, 1), f32(5, 7), ((5, 3), "int64")
    ),
    "where": _case(EACH, op.where, ((5, 24), "bool"), f32(5, 24), f32(24)),
    "repeat": _case(TRANSPOSE, lambda x: op.repeat(x, 3, 1), f32(3, 5)),
    "tile": _case(EACH, lambda x: op.tile(x, [2, 3]), f32(3, 5)),
    "broadcast": _case(EACH, lambda x: op.broadcast_to(x, [3, 5, 24]), f32(5, 1)),
    "one hot": _case(
        EACH,
        lambda i: op.one_hot(i, relax.prim_value(1.0), relax.prim_value(0.0), 7, -1),
        ((5,), "int64"),
    ),
}

POINTWISE = {
    "add relu": _case(EACH, lambda a, b: nn.relu(op.add(a, b)), f32(3, 7, 19), f32(3, 7, 19)),
    "bias nchw": _case(EACH, lambda a, b: nn.relu(op.add(a, b)), f32(1, 13, 5, 7), f32(13, 1, 1)),
    "bias nhwc": _case(EACH, lambda a, b: nn.relu(op.add(a, b)), f32(1, 5, 7, 19), f32(19)),
    "prime": _case(EACH, op.exp, f32(149)),
    "extent 1 everywhere": _case(EACH, op.exp, f32(1, 1, 1, 1)),
    "extent 1 inside": _case(EACH, op.add, f32(1, 97, 1), f32(1, 1, 1)),
    "extent 1 last": _case(EACH, op.add, f32(5, 80, 1), f32(5, 1, 1)),
    "scalar": _case(EACH, op.exp, f32()),
    "scalars": _case(EACH, op.add, f32(), f32()),
    "scalar and tensor": _case(EACH, op.multiply, f32(), f32(7, 19)),
    "casts": _case(
        EACH,
        lambda x: op.astype(op.astype(op.astype(x, "int32"), "float16"), "int64"),
        f32(5, 17),
    ),
    "to bool": _case(EACH, lambda x: op.astype(op.astype(x, "bool"), "float32"), ((7, 40), "int8")),
    "compare": _case(EACH, op.less, f32(5, 80), f32(80)),
    "logic": _case(EACH, op.logical_and, ((149,), "bool"), ((149,), "bool")),
    "half": _case(EACH, lambda x: nn.silu(x), ((5, 40), "float16")),
    "int8": _case(EACH, op.maximum, ((5, 97), "int8"), ((5, 97), "int8")),
    "int64": _case(EACH, op.multiply, ((3, 24), "int64"), ((24,), "int64")),
    "hard swish": _case(
        EACH,
        lambda x: op.multiply(x, op.clip(op.add(x, relax.const(3.0)), 0.0, 6.0)),
        f32(3, 40),
    ),
    "empty": _case(EACH, op.exp, f32(0, 5)),
    "empty inside": _case(EACH, op.add, f32(3, 0), f32(3, 0)),
    "empty joined": _case(EACH, lambda *v: op.concat(list(v), 1), f32(3, 0), f32(3, 5)),
    "sum of nothing": _case(EACH, lambda x: op.sum(x, axis=[1]), f32(3, 0)),
    "matmul of nothing": _case(EACH, op.matmul, f32(3, 0), f32(0, 5)),
}

CASES = {**CONVOLUTIONS, **MATMULS, **REDUCTIONS, **MOVES, **POINTWISE}


def layer_norm(*shape: int, dtype: str = "float32") -> tuple:
    """A layer normalisation over the last axis."""
    last = shape[-1:]
    return (
        lambda x, g, b: nn.layer_norm(x, g, b, [-1]),
        (shape, dtype),
        (last, dtype),
        (last, dtype),
    )
