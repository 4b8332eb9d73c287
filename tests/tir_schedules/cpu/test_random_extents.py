"""Random extents: products and convolutions with their epilogues."""

from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import conv_bias_relu, nhwc
from lowering import Kernels, assert_same, f32, kernel_of, run
from thoroughness import DRAWS
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

EXTENT = st.integers(1, 40)
SMALL = st.integers(1, 7)


def check(plain: Kernels) -> None:
    machine = host_description()
    both = dict(plain)
    for name, func in plain.items():
        both[f"{name} scheduled"] = schedule_kernel(func, machine)[0]
    results = run(both)
    for name in plain:
        assert_same(results[name], results[f"{name} scheduled"], name)


def _dense(a: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    return nn.relu(relax.op.add(relax.op.matmul(a, w), b))


@settings(max_examples=6 * DRAWS, deadline=None, derandomize=True)
@given(rows=EXTENT, inner=EXTENT, columns=EXTENT, batch=SMALL)
def test_matmul_bias_relu(rows: int, inner: int, columns: int, batch: int) -> None:
    check(
        {
            "plain": kernel_of(_dense, f32(rows, inner), f32(inner, columns), f32(columns)),
            "batched": kernel_of(
                _dense, f32(batch, rows, inner), f32(batch, inner, columns), f32(columns)
            ),
        }
    )


@settings(max_examples=6 * DRAWS, deadline=None, derandomize=True)
@given(
    channels=st.integers(1, 13),
    filters=EXTENT,
    size=st.tuples(st.integers(3, 9), st.integers(3, 13)),
    kernel=st.sampled_from([1, 3]),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
)
def test_conv_bias_relu(
    channels: int, filters: int, size: tuple[int, int], kernel: int, stride: int, padding: int
) -> None:
    options = {"strides": (stride, stride), "padding": (padding, padding)}
    check(
        {
            "nhwc": kernel_of(
                lambda *v: nhwc(*v, **options),
                f32(1, *size, channels),
                f32(kernel, kernel, channels, filters),
                f32(filters),
            ),
            "nchw": kernel_of(
                lambda *v: conv_bias_relu(*v, **options),
                f32(1, channels, *size),
                f32(filters, channels, kernel, kernel),
                f32(1, filters, 1, 1),
            ),
        }
    )
