"""Depthwise convolutions, convolutions of few products and pools, on sizes that are not round."""

from typing import Any

from kernel_cases import KernelCase
from lowering import f32
from tvm import relax
from tvm.relax.op import nn

op = relax.op


def last(*shapes: Any, dtype: str = "float32", **kwargs: Any) -> KernelCase:
    """A convolution with channels last; a third shape is that of a bias, with an activation."""
    return _case(shapes, dtype, data_layout="NHWC", kernel_layout="HWIO", **kwargs)


def first(*shapes: Any, dtype: str = "float32", **kwargs: Any) -> KernelCase:
    """The same with channels first."""
    return _case(shapes, dtype, **kwargs)


def _case(shapes: tuple, dtype: str, **kwargs: Any) -> KernelCase:
    def expression(x: relax.Expr, w: relax.Expr, *bias: relax.Expr) -> relax.Expr:
        y = nn.conv2d(x, w, **kwargs)
        return nn.silu(op.add(y, bias[0])) if bias else y

    return KernelCase(
        expression, tuple((shape, dtype) for shape in shapes), "depthwise convolution"
    )


def depthwise(shape: tuple, kernel: tuple, dtype: str = "float32", **kwargs: Any) -> KernelCase:
    """Depthwise with channels last, bias and activation."""
    channels = shape[-1]
    weight = (*kernel, 1, channels)
    return last(shape, weight, (channels,), dtype=dtype, groups=channels, **kwargs)


def pool(
    shape: tuple, size: tuple, *rest: Any, dtype: str = "float32", **kwargs: Any
) -> KernelCase:
    """A maximum pool."""
    return KernelCase(
        lambda x: nn.max_pool2d(x, size, *rest, **kwargs), ((shape, dtype),), "pooling"
    )


DEPTHWISE = {
    "odd channels": depthwise((2, 9, 7, 19), (3, 3), padding=(1, 1)),
    "strides": depthwise((2, 11, 13, 24), (3, 3), padding=(1, 1), strides=(2, 2)),
    "dilation": depthwise((1, 11, 13, 8), (3, 3), padding=(2, 2), dilation=(2, 2)),
    "uneven padding": depthwise((1, 11, 13, 8), (5, 5), padding=(2, 1, 1, 2)),
    "no padding": depthwise((1, 9, 8, 12), (3, 2)),
    "half": depthwise((1, 9, 9, 24), (3, 3), "float16", padding=(1, 1)),
    "half to float": last(
        (1, 9, 9, 16), (3, 3, 1, 16), dtype="float16", groups=16, out_dtype="float32"
    ),
    "bytes": last((1, 9, 9, 16), (3, 3, 1, 16), dtype="int8", groups=16, out_dtype="int32"),
    "twice the channels": last((1, 9, 9, 8), (3, 3, 1, 16), (16,), groups=8, padding=(1, 1)),
    "three times": last((1, 9, 9, 6), (3, 3, 1, 18), (18,), groups=6, padding=(1, 1)),
    "one input channel": last((2, 9, 9, 1), (3, 3, 1, 16), (16,), padding=(1, 1)),
    "long row": last((1, 5, 40, 8), (1, 17, 1, 8), (8,), groups=8, padding=(0, 8)),
    "channels first": first((2, 6, 9, 13), (6, 1, 3, 3), (1, 6, 1, 1), groups=6, padding=(1, 1)),
    "channels first, strides": first(
        (2, 6, 9, 13), (6, 1, 5, 5), groups=6, padding=(2, 2), strides=(2, 1), dilation=(1, 2)
    ),
    "channels first, half": first(
        (1, 4, 9, 13), (4, 1, 3, 3), dtype="float16", groups=4, padding=(1, 1)
    ),
    "channels first, three times": first(
        (1, 4, 9, 13), (12, 1, 3, 3), (1, 12, 1, 1), groups=4, padding=(1, 1)
    ),
    "signal": first((1, 1, 1, 700), (1, 1, 1, 256), strides=(1, 2)),
    "one axis": KernelCase(
        lambda x, w: nn.conv1d(x, w, groups=6, padding=1),
        (f32(1, 6, 19), f32(6, 1, 3)),
        "depthwise convolution",
    ),
    "three axes": KernelCase(
        lambda x, w: nn.conv3d(x, w, groups=4, padding=1),
        (f32(1, 4, 5, 6, 7), f32(4, 1, 3, 3, 3)),
        "depthwise convolution",
    ),
}

SINGLE_OUTPUT = {
    "one output channel": first((1, 4, 9, 13), (1, 4, 5, 5), (1, 1, 1, 1), padding=(2, 2)),
    "double": last(
        (1, 9, 9, 6), (3, 3, 6, 8), (8,), padding=(1, 1), dtype="float64", out_dtype="float64"
    ),
}

POOLS = {
    "channels first": pool((1, 5, 13, 13), (3, 3), (2, 2), (1, 1)),
    "channels last": pool((1, 13, 7, 24), (3, 3), (2, 2), (1, 1), layout="NHWC"),
    "half": pool((1, 9, 7, 24), (5, 5), (1, 1), (2, 2), layout="NHWC", dtype="float16"),
    "bytes": pool((1, 7, 7, 16), (2, 2), layout="NHWC", dtype="int8"),
    "mean": KernelCase(
        lambda x: nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), ceil_mode=True),
        (f32(1, 3, 13, 7),),
        "pooling",
    ),
    "mean with padding": KernelCase(
        lambda x: nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1), count_include_pad=True, layout="NHWC"),
        (f32(1, 7, 7, 12),),
        "pooling",
    ),
    "mean of halves": KernelCase(
        lambda x: nn.avg_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
        (((1, 8, 6, 16), "float16"),),
        "pooling",
    ),
    "one axis": KernelCase(
        lambda x: nn.max_pool1d(x, (3,), (2,), (1, 1)), (f32(1, 3, 17),), "pooling"
    ),
    "three axes": KernelCase(
        lambda x: nn.max_pool3d(x, (2, 3, 3), (1, 2, 2), (0, 0, 1, 1, 1, 1)),
        (f32(1, 3, 5, 7, 7),),
        "pooling",
    ),
}
