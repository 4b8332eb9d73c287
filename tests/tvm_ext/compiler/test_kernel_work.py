"""Formulas of a kernel's work are what is counted of the same kernel with numbers for its sizes."""

import pytest
import tvm
from small_models import mlp, model, node, rand, self_attention, value
from thoroughness import one_in
from tvm.s_tir.analysis import estimate_tir_flops
from unoptimised import HOST

import tvm_ext
from tvm_ext.compiler.kernel_work import (
    formula,
    has_known_sizes,
    kernel_work,
    named_sizes,
    sizes_of,
    work_of_call,
)
from tvm_ext.report.formulas import evaluate
from tvm_ext.tir_schedules.statements import with_sizes

ANY = ["N", "L", 16]


def attention():
    return model(self_attention(), [value("x", ANY)], [value("y", ANY)])


def convolutions():
    options = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "w"], ["a"], **options),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"], **options),
        node("GlobalAveragePool", ["c"], ["y"]),
    ]
    image = [value("x", ["N", 3, "H", "W"])]
    return model(nodes, image, [value("y", ["N", 8, 1, 1])], w=rand(8, 3, 3, 3), v=rand(8, 8, 3, 3))


def embedding():
    nodes = [node("Gather", ["t", "i"], ["y"])]
    return model(nodes, [value("i", ["N", "L"], 7)], [value("y", ANY)], t=rand(50, 16))


MODELS = {f.__name__: f for f in (mlp, attention, convolutions, embedding)}


@pytest.fixture(scope="module", params=MODELS)
def kernels(request, lowered_kernels):
    return lowered_kernels(MODELS[request.param]())


@pytest.fixture(scope="module")
def lowered_kernels():
    """The kernels of a model ahead of their schedules, as reports count them."""
    import tvm_ext.api as api

    def lowered(onnx_model):
        found = []
        counted = api.kernel_records
        api.kernel_records = lambda mod, *others: found.append(mod) or counted(mod, *others)
        try:
            tvm_ext.compile(onnx_model, HOST)
        finally:
            api.kernel_records = counted
        functions = found[0].functions.values()
        return [func for func in functions if isinstance(func, tvm.tirx.PrimFunc)]

    return lowered


@pytest.mark.extended
@pytest.mark.parametrize("seed", one_in(3, [3, 8, 21]))
def test_formulas_are_what_is_counted_of_numbers(kernels, seed):
    assert any(not has_known_sizes(func) for func in kernels)
    for func in kernels:
        numbers = {size: seed + 2 * i for i, size in enumerate(sizes_of(func))}
        exact = with_sizes(func, {s: tvm.tirx.const(n, str(s.ty)) for s, n in numbers.items()})
        expected = estimate_tir_flops(tvm.IRModule({"main": exact}))
        work, names = kernel_work(func), named_sizes(func)
        sizes = {names[size]: n for size, n in numbers.items()}
        assert evaluate(formula(work.flops, names), sizes) == expected
        assert evaluate(formula(work.bytes, names), sizes) == kernel_work(exact).at({}).bytes


@pytest.mark.slow
def test_arguments_tell_the_sizes(lowered_kernels):
    work = [work_of_call(func, [(5, 6), (6, 4), (5, 4)]) for func in lowered_kernels(mlp())]
    assert 5 * 4 * (2 * 6 + 1) in [one.flops for one in work if one is not None]
    (func, *_) = lowered_kernels(mlp())
    assert work_of_call(func, [None, None, None]) is None


def test_a_table_counts_as_far_as_it_is_read(lowered_kernels):
    kernels = lowered_kernels(embedding())
    texts = [formula(kernel_work(func).bytes, named_sizes(func)) for func in kernels]
    (text,) = [text for text in texts if "min" in text]
    few, many = (evaluate(text, {"N": n, "L": 10}) for n in (1, 1000))
    assert few == 10 * 8 + 4 * 160 + 4 * 160
    assert many == 10_000 * 8 + 4 * 50 * 16 + 4 * 160_000
