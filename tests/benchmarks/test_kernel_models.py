"""The kernels' models are valid, of the stated work, and give ONNX Runtime's numbers."""

import math

import numpy as np
import onnx
import pytest
from kernel_models import GROUPS, Scale, kernel_models, select_kernels
from peers import OURS, REFERENCE, UNFUSED, Job
from results import relative_difference

from tvm_ext.errors import InputError

TINY = {kernel.name: kernel for kernel in kernel_models(Scale(large_bytes=1 << 14, divisor=8))}
FULL = {kernel.name: kernel for kernel in kernel_models(Scale(large_bytes=1 << 27))}


def shapes_of(values) -> dict[str, list[int]]:
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_numbers_of_a_tiny_kernel(name, tmp_path):
    model = TINY[name].build()
    onnx.checker.check_model(model, full_check=True)
    path = tmp_path / "kernel.onnx"
    onnx.save(model, path)
    generator = np.random.default_rng(0)
    inputs = {
        name: generator.standard_normal(shape, np.float32)
        for name, shape in shapes_of(model.graph.input).items()
    }
    job = Job(path, inputs, threads=1, is_kernel=True)
    wanted = REFERENCE.prepare(job).outputs()
    programs = [OURS, UNFUSED] if TINY[name].group == "fusion" else [OURS]
    for peer in programs:
        assert relative_difference(peer.prepare(job).outputs(), wanted) < 1e-4


@pytest.mark.parametrize("name", TINY)
def test_bytes_are_those_of_the_models_tensors(name):
    graph = TINY[name].build().graph
    shapes = [*shapes_of(graph.input).values(), *shapes_of(graph.output).values()]
    shapes += [list(weight.dims) for weight in graph.initializer]
    # Vectors along a chain are left out: they stay in the cache.
    vectors = 0.05 if TINY[name].group == "fusion" else 0
    total = 4 * sum(map(math.prod, shapes))
    assert TINY[name].bytes == pytest.approx(total, rel=vectors)


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("conv3x3_56x56_64_relu", 2 * 56 * 56 * 64 * 64 * 9),
        ("conv3x3_s2_56x56_128", 2 * 28 * 28 * 128 * 128 * 9),
        ("depthwise5x5_28x28_128", 2 * 28 * 28 * 128 * 25),
        ("grouped3x3_28x28_256_g32", 2 * 28 * 28 * 256 * 8 * 9),
        ("transposed2x2_s2_40x40_64", 2 * 40 * 40 * 64 * 64 * 4),
        ("conv1d_k5_1000_128", 2 * 1000 * 128 * 128 * 5),
        ("conv3d_3x3x3_8x28x28_32", 2 * 8 * 28 * 28 * 32 * 32 * 27),
        ("matmul_1024x1024x1024", 2 * 1024**3),
        ("matmul_12x128x64x128", 2 * 12 * 128 * 64 * 128),
    ],
)
def test_operations(name, flops):
    assert FULL[name].flops == flops


@pytest.mark.parametrize("group", ["memory", "fusion"])
def test_large_tensors_are_beyond_the_caches(group):
    for kernel in (kernel for kernel in FULL.values() if kernel.group == group):
        assert kernel.limit == "bytes"
        # An input alone, or both parts of a concatenation.
        assert kernel.bytes > 1 << 27


def test_every_kernel_is_in_a_group():
    assert {kernel.group for kernel in FULL.values()} == set(GROUPS)
    assert len(FULL) == len(kernel_models(Scale(1 << 27)))


def test_kernels_are_selected_by_name_and_by_group():
    kernels = list(FULL.values())
    assert select_kernels(kernels, []) == kernels
    picked = select_kernels(kernels, ["add", "matmul"])
    assert [k.name for k in picked if k.group != "matmul"] == ["add"]
    assert sum(k.group == "matmul" for k in picked) == 7


def test_an_unknown_kernel_is_named_with_the_nearest():
    with pytest.raises(InputError, match=r"'convv'.*'conv'"):
        select_kernels(FULL.values(), ["convv"])
