"""Modules of TVM as models, and our passes in pipelines of plain TVM."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError, ModelError
from tvm_ext.hardware.targets import resolve_target

WEIGHT = np.random.default_rng(0).standard_normal((16, 24)).astype("float32")


def dense() -> tvm.IRModule:
    """``relu(x @ w)`` and its sum by rows, its number of rows symbolic, without dataflow blocks."""
    builder = relax.BlockBuilder()
    rows = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([rows, 16], "float32"))
    with builder.function("main", [x]):
        product = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
        kept = builder.emit(relax.op.nn.relu(product))
        sums = builder.emit(relax.op.sum(kept, axis=1))
        builder.emit_func_output(relax.Tuple([kept, sums]))
    return builder.get()


@I.ir_module
class ByHand:
    """A kernel written by hand and an operator."""

    @T.prim_func(private=True, s_tir=True)
    def twice(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            with T.sblock("twice"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = ByHand
        a = R.call_tir(cls.twice, (x,), out_ty=R.Tensor((4, 8), "float32"))
        return R.exp(a)


def check_dense(compiled, rows: int) -> None:
    x = np.random.default_rng(1).standard_normal((rows, 16)).astype("float32")
    found = compiled.run({"x": x})
    wanted = np.maximum(x @ WEIGHT, 0)
    np.testing.assert_allclose(found["output_0"], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["output_1"], wanted.sum(1), rtol=1e-5, atol=1e-5)


def test_a_module_of_relax_compiles_and_runs():
    compiled = tvm_ext.compile(dense(), HOST)
    assert [spec.describe() for spec in compiled.inputs] == ["x: float32['n', 16]"]
    check_dense(compiled, 5)
    check_dense(compiled, 1)


@pytest.mark.extended
def test_sizes_are_frozen_and_limited():
    frozen = tvm_ext.compile(dense(), HOST, input_shapes={"x": [4, 16]})
    assert frozen.inputs[0].shape == (4, 16)
    check_dense(frozen, 4)
    limited = tvm_ext.compile(dense(), HOST, input_shapes={"x": ["1:8", 16]})
    assert not limited.report.memory.dynamic
    check_dense(limited, 8)


@pytest.mark.extended
def test_kernels_written_by_hand_stay_part_of_it():
    x = np.random.default_rng(2).standard_normal((4, 8)).astype("float32")
    found = tvm_ext.compile(ByHand, HOST).run({"x": x})["output"]
    np.testing.assert_allclose(found, np.exp(2 * x), rtol=1e-5)


@pytest.mark.extended
def test_kernels_under_the_symbols_that_they_were_made_with():
    """``te.create_prim_func`` says "main", also of two kernels of one module."""
    type_ = relax.TensorType([2, 3], "float32")
    x, read = relax.Var("x", type_), te.placeholder((2, 3), "float32")
    builder = relax.BlockBuilder()
    kernels = {
        "next": te.create_prim_func([read, te.compute((2, 3), lambda i, j: read[i, j] + 1)]),
        "twice": te.create_prim_func([read, te.compute((2, 3), lambda i, j: read[i, j] * 2)]),
    }
    with builder.function("main", [x]):
        found = x
        for name, kernel in kernels.items():
            found = builder.emit(relax.call_tir(builder.add_func(kernel, name), (found,), type_))
        builder.emit_func_output(found)
    mod = builder.get()
    for name, kernel in kernels.items():
        mod.update_func(mod.get_global_var(name), kernel)
    found = tvm_ext.compile(mod, HOST).run({"x": np.ones((2, 3), np.float32)})["output"]
    np.testing.assert_array_equal(found, np.full((2, 3), 4))


@pytest.mark.extended
def test_a_tuple_of_one_is_one_output():
    # TVM's importer of PyTorch makes them.
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(relax.Tuple([builder.emit(relax.op.negative(x))]))
    found = tvm_ext.compile(builder.get(), HOST).run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(found["output"], -np.ones((2, 3)))


@pytest.mark.extended
def test_the_given_module_stays_as_it_is():
    mod = dense()
    text = mod.script()
    tvm_ext.compile(mod, HOST)
    assert mod.script() == text


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"y": [4, 16]}, "for 'y'"),
        ({"x": [4]}, "x of rank 2"),
        ({"x": [4, 17]}, "dimension 1"),
        ({"x": [0, 16]}, "dimension 0"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, words):
    with pytest.raises(InputError, match=words):
        tvm_ext.compile(dense(), HOST, input_shapes=shapes)


def test_a_module_without_main_is_refused():
    with pytest.raises(ModelError, match="'main'"):
        tvm_ext.compile(tvm.IRModule({}))


@pytest.mark.extended
def test_the_pipeline_has_a_name_in_tvm():
    machine = resolve_target("cpu")
    with machine.tvm_target() as target:
        built = tvm.compile(dense(), target, relax_pipeline=relax.get_pipeline("tvm_ext"))
    x = np.ones((3, 16), "float32")
    result = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
    np.testing.assert_allclose(result[0].numpy(), np.maximum(x @ WEIGHT, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.extended
def test_the_named_pipeline_goes_the_road_of_compile():
    """Without dataflow blocks, which passes look at, too: the product and its Relu are fused."""
    with resolve_target("cpu").tvm_target():
        planned = relax.get_pipeline("tvm_ext")(dense())
    compiled = tvm_ext.compile(dense())
    kernels = [name for name, func in by_name(planned).items() if isinstance(func, tirx.PrimFunc)]
    assert {kernel.name for kernel in compiled.report.kernels} <= set(kernels)
    assert any("matmul" in name and "relu" in name for name in kernels)


def by_name(mod: tvm.IRModule) -> dict:
    return {str(var.name_hint): func for var, func in mod.functions.items()}


def test_a_gpu_needs_schedules_in_the_named_pipeline_too():
    pipeline = relax.get_pipeline("tvm_ext", disabled_passes=["ScheduleKernels"])
    with resolve_target("nvidia-a100").tvm_target(), pytest.raises(RuntimeError, match="left out"):
        pipeline(dense())


@pytest.mark.extended
def test_kernels_are_scheduled_in_a_sequential():
    steps = [relax.get_pipeline("zero"), tvm_ext.ScheduleKernels()]
    with resolve_target("cpu").tvm_target() as target:
        mod = tvm.transform.Sequential(steps)(dense())
        kernels = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        assert kernels
        assert all("tirx.is_scheduled" in kernel.attrs for kernel in kernels)
        built = tvm.compile(mod, target)
    x = np.ones((2, 16), "float32")
    result = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
    np.testing.assert_allclose(result[0].numpy(), np.maximum(x @ WEIGHT, 0), rtol=1e-5, atol=1e-5)


def test_a_model_of_pytorch_through_tvms_importer():
    torch = pytest.importorskip("torch")
    from tvm.relax.frontend.torch import from_exported_program

    nn = torch.nn
    features = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    network = nn.Sequential(*features, nn.Flatten(), nn.Linear(8 * 16, 4)).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    example = torch.randn(4, 3, 8, 8)
    program = torch.export.export(network, (example,), dynamic_shapes=({0: batch},))
    compiled = tvm_ext.compile(from_exported_program(program), HOST)
    x = torch.randn(6, 3, 8, 8)
    (found,) = compiled.run({compiled.inputs[0].name: x.numpy()}).values()
    np.testing.assert_allclose(found, network(x).detach().numpy(), rtol=1e-4, atol=1e-5)
