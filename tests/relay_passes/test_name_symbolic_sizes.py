"""NameSymbolicSizes: computed sizes of kernels' parameters become variables."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi
from unoptimised import LLVM

from tvm_ext.errors import PassError
from tvm_ext.passes.pipeline import PassPipeline, build_pipeline, load_pipelines
from tvm_ext.relay_passes import NameSymbolicSizes

H, W = tirx.Var("h", "int64"), tirx.Var("w", "int64")


def convolution(height: object, width: object) -> tvm.IRModule:
    image = te.placeholder((1, 8, height, width), name="image")
    weight = te.placeholder((8, 8, 3, 3), name="weight")
    result = topi.nn.conv2d_nchw(image, weight, 2, 1, 1)
    return tvm.IRModule({"main": te.create_prim_func([image, weight, result, H, W])})


def named(mod: tvm.IRModule) -> tirx.PrimFunc:
    return NameSymbolicSizes()(mod)["main"]


def sizes(func: tirx.PrimFunc, position: int) -> list:
    return list(func.params[position].ty.shape)


def test_every_computed_size_gets_a_name() -> None:
    func = named(convolution((H - 1) // 2 + 1, (W - 1) // 2 + 1))
    found = [*sizes(func, 0)[2:], *sizes(func, 2)[2:]]
    assert all(isinstance(size, tirx.Var) for size in found)
    assert len(set(found)) == 4
    assert "//" not in func.script()


def test_a_sum_with_a_named_size_keeps_the_name() -> None:
    """The padded image is two larger than the image, not a size without relation to it."""
    func = named(convolution((H - 1) // 2 + 1, (W - 1) // 2 + 1))
    name = sizes(func, 0)[2].name
    assert f"{name} + T.int64(2)" in func.script()


def test_equal_sizes_share_a_name() -> None:
    func = named(convolution((H - 1) // 2 + 1, (H - 1) // 2 + 1))
    assert sizes(func, 0)[2].same_as(sizes(func, 0)[3])


@pytest.mark.parametrize("size", [H, H + 2, H * 4, tirx.const(16, "int64")])
def test_simple_sizes_stay(size: object) -> None:
    image = te.placeholder((1, size), name="image")
    func = te.create_prim_func([image, topi.nn.relu(image), H])
    mod = tvm.IRModule({"main": func})
    assert NameSymbolicSizes()(mod).same_as(mod)


def test_the_numbers_stay() -> None:
    mod = convolution((H - 1) // 2 + 1, (W - 1) // 2 + 1)
    rng = np.random.default_rng(0)
    image, weight = rng.standard_normal((1, 8, 6, 9)), rng.standard_normal((8, 8, 3, 3))
    results = []
    for each in (mod, NameSymbolicSizes()(mod)):
        run = tvm.compile(each, target=LLVM)
        arrays = [tvm.runtime.tensor(a.astype("float32")) for a in (image, weight)]
        result = tvm.runtime.tensor(np.zeros((1, 8, 3, 5), "float32"))
        run["main"](*arrays, result, 11, 17)
        results.append(result.numpy())
    np.testing.assert_array_equal(*results)


def test_a_function_whose_parameter_defines_nothing() -> None:
    """FuseTIR leaves such a function where a branch does not use the sizes that it gets."""
    inner = relax.Var("p", relax.TensorType([H * H + 1, 4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("branch", [inner]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.relu(inner))
        builder.emit_func_output(result)
    func = NameSymbolicSizes()(builder.get())["branch"]
    size = func.params[0].ty.shape[0]
    assert isinstance(size, tirx.Var)
    (binding,) = func.body.blocks[0].bindings
    assert binding.var.ty.shape[0].same_as(size)


def test_loops_are_as_long_as_the_arrays_they_fill() -> None:
    """TVM simplifies the extent of a loop by what a size is computed from, not the array's."""
    side = (H - 1) // 4 + 1
    image = te.placeholder((1, side), name="image")
    pairs = te.compute((1, (side - 1) // 2 + 1), lambda n, i: image[n, i], name="pairs")
    result = te.compute((1, side), lambda n, i: pairs[n, i // 2], name="result")
    func = named(tvm.IRModule({"main": te.create_prim_func([image, result, H])}))
    assert "//" in func.script()
    assert "h - " not in func.script()


def test_no_pipeline_may_lack_it() -> None:
    """Kernels of models whose sizes a run decides index by the names."""
    with pytest.raises(PassError, match="'NameSymbolicSizes' cannot be disabled"):
        build_pipeline(disabled_passes=["NameSymbolicSizes"])
    lower = [name for name in load_pipelines()["O3"].lower if name != "NameSymbolicSizes"]
    with pytest.raises(PassError, match="NameSymbolicSizes"):
        build_pipeline(own=PassPipeline(lower=lower))
