"""FuseOperators: the same groups as TVM's FuseOps, and every call names the right nodes."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from conv_modules import assert_same_numbers
from tvm import relax, te
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.fuse_operators import FuseOperators
from tvm_ext.relay_passes.graph_pass import OPAQUE
from tvm_ext.relay_passes.propagate_spans import PropagateSpans
from tvm_ext.relay_passes.spans import bindings_of, origins_of, write_origins

TYPE = relax.TensorType([2, 3], "float32")
op, nn = relax.op, relax.op.nn
Emit = Callable[..., relax.Var]


def lower(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [
        PropagateSpans(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
    ]
    return tvm.transform.Sequential(passes)(mod)


def build(body: Callable[[Emit, relax.Var], list[relax.Var]], shape=(2, 3)) -> tvm.IRModule:
    """A lowered module; ``body`` emits with the node's name as second argument."""
    builder = relax.BlockBuilder()
    names: list[str] = []

    def emit(value: relax.Expr, name: str = "") -> relax.Var:
        names.append(name)
        return builder.emit(value)

    x = relax.Var("x", relax.TensorType(list(shape), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = body(emit, x)
            outputs = [builder.emit_output(value) for value in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    mod = builder.get()
    emitted = bindings_of(mod["main"])[: len(names)]
    named = {b.var: (n,) for b, n in zip(emitted, names, strict=True) if n}
    return lower(write_origins(mod, named))


def weight(*shape: int, seed: int = 0) -> relax.Expr:
    return relax.const(np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32"))


def called(mod: tvm.IRModule) -> list[tuple[str, tuple[str, ...]]]:
    """Names of the called functions and the origins of the calls, in order."""
    found = []
    for binding in bindings_of(mod["main"]):
        value = binding.value
        if not isinstance(value, relax.Call):
            continue
        callee = value.op if isinstance(value.op, tvm.ir.GlobalVar) else value.args[0]
        found.append((str(callee.name_hint), origins_of(binding.var)))
    return found


def fuse(mod: tvm.IRModule) -> tvm.IRModule:
    text = mod.script(show_meta=True)
    fused = FuseOperators()(mod)
    assert mod.script(show_meta=True) == text
    assert structural_equal(fused, relax.transform.FuseOps()(mod))
    assert structural_equal(FuseOperators()(fused), fused)
    relax.analysis.well_formed(fused)
    finished = relax.transform.FuseTIR()(fused)
    assert called(finished) == called(fused), "FuseTIR lost origins"
    return fused


def origins(mod: tvm.IRModule) -> list[tuple[str, ...]]:
    return [names for _, names in called(fuse(mod))]


def test_a_group_carries_the_names_of_all_its_operators():
    def body(emit, x):
        y = emit(op.matmul(x, weight(3, 4)), "mm")
        y = emit(op.add(y, weight(4)), "bias")
        return [emit(nn.relu(y), "act")]

    assert origins(build(body)) == [("mm", "bias", "act")]


def test_layers_that_share_a_kernel_keep_their_own_names():
    def body(emit, x):
        for layer in range(3):
            x = emit(op.matmul(x, weight(3, 3, seed=layer)), f"mm {layer}")
            x = emit(nn.relu(x), f"relu {layer}")
        return [x]

    fused = fuse(build(body))
    assert len({name for name, _ in called(fused)}) == 1
    assert [names for _, names in called(fused)] == [
        ("mm 0", "relu 0"),
        ("mm 1", "relu 1"),
        ("mm 2", "relu 2"),
    ]


def test_layers_with_one_weight_for_both_keep_their_own_names():
    shared = weight(3, 3)

    def body(emit, x):
        y = emit(nn.relu(emit(op.matmul(x, shared), "mm a")), "relu a")
        return [emit(nn.relu(emit(op.matmul(y, shared), "mm b")), "relu b")]

    assert origins(build(body)) == [("mm a", "relu a"), ("mm b", "relu b")]


def test_same_operators_on_other_shapes_are_other_kernels():
    def body(emit, x):
        y = emit(nn.relu(emit(op.matmul(x, weight(3, 5)), "wide")), "relu wide")
        return [emit(nn.relu(emit(op.matmul(y, weight(5, 2)), "narrow")), "relu narrow")]

    fused = fuse(build(body))
    assert len({name for name, _ in called(fused)}) == 2
    assert origins(build(body)) == [("wide", "relu wide"), ("narrow", "relu narrow")]


@pytest.mark.parametrize("epsilons", [(1e-5, 1e-1), (1e-5, 1e-5)])
def test_kernels_with_another_epsilon_are_not_shared(epsilons):
    gamma, beta = weight(3), weight(3, seed=1)

    def body(emit, x):
        for layer, epsilon in enumerate(epsilons):
            normal = nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=epsilon)
            x = emit(normal, f"norm {layer}")
        return [x]

    fused = fuse(build(body))
    assert len({name for name, _ in called(fused)}) == len(set(epsilons))
    assert [names for _, names in called(fused)] == [("norm 0",), ("norm 1",)]


def test_results_of_a_tuple_operator_name_it():
    def body(emit, x):
        parts = emit(op.split(x, 3, axis=1), "split")
        fields = [emit(relax.TupleGetItem(parts, i)) for i in range(3)]
        return [emit(op.exp(field), f"exp {i}") for i, field in enumerate(fields)]

    found = origins(build(body))
    assert {name for names in found for name in names} == {"split", "exp 0", "exp 1", "exp 2"}
    assert all(found)


def test_a_value_with_two_readers_is_named_where_it_is_computed():
    def body(emit, x):
        y = emit(op.matmul(x, weight(3, 3)), "mm")
        left, right = emit(op.exp(y), "exp"), emit(op.tanh(y), "tanh")
        return [emit(op.add(left, right), "add"), y]

    found = origins(build(body))
    assert sorted(name for names in found for name in names) == ["add", "exp", "mm", "tanh"]


def test_operators_without_a_name_add_none():
    def body(emit, x):
        y = emit(op.matmul(x, weight(3, 4)), "mm")
        y = emit(op.add(y, weight(4)))
        return [emit(nn.relu(y))]

    assert origins(build(body)) == [("mm",)]


def test_a_symbolic_size_does_not_hide_names():
    def body(emit, x):
        return [emit(nn.relu(emit(op.matmul(x, weight(5, 4)), "mm")), "relu")]

    assert origins(build(body, (tvm.tirx.Var("n", "int64"), 5))) == [("mm", "relu")]


def test_branches_that_compute_the_same_keep_their_own_names():
    """TVM groups nothing inside branches; the calls there must still be told apart."""
    w = weight(3, 3)
    builder = relax.BlockBuilder()
    x, flag = relax.Var("x", TYPE), relax.Var("flag", relax.TensorType([], "bool"))

    def branch() -> relax.Expr:
        builder._begin_dataflow_block()
        out = builder.emit_output(nn.relu(builder.emit(op.matmul(x, w))))
        return relax.SeqExpr([builder._end_block()], out)

    with builder.function("main", [x, flag]):
        result = builder.emit(relax.If(flag, branch(), branch()))
        builder.emit_func_output(result)
    mod = builder.get()
    calls = [b.var for b in bindings_of(mod["main"]) if isinstance(b.value, relax.Call)]
    names = ["mm then", "relu then", "mm else", "relu else"]
    mod = write_origins(mod, {v: (n,) for v, n in zip(calls, names, strict=True)})
    assert origins(lower(mod)) == [(name,) for name in names]


def test_the_reader_of_a_value_that_is_computed_twice_is_named():
    def body(emit, x):
        first, second = emit(op.exp(x), "exp 0"), emit(op.exp(x), "exp 1")
        y = emit(op.matmul(second, weight(3, 3)), "mm")
        return [emit(nn.relu(y), "relu"), first]

    found = origins(build(body))
    assert found[-1] == ("mm", "relu")
    assert sorted(name for names in found for name in names) == ["exp 0", "exp 1", "mm", "relu"]


def test_a_cast_to_sizes_hides_no_names_of_a_long_chain():
    """Each step reads the one before twice: 2^60 operands, spelled out."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=2))
    with builder.function("main", [x]):
        with builder.dataflow():
            rows = tvm.tirx.Var("n", "int64")
            y = builder.match_cast(x, relax.TensorType([rows, 3], "float32"))
            for _ in range(60):
                y = builder.emit(op.add(builder.emit(op.matmul(y, weight(3, 3))), y))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    mod = builder.get()
    steps = [b.var for b in bindings_of(mod["main"]) if isinstance(b.value, relax.Call)]
    names = [f"{kind} {i}" for i in range(60) for kind in ("mm", "add")]
    mod = write_origins(mod, {v: (n,) for v, n in zip(steps, names, strict=True)})
    found = [names for _, names in called(FuseOperators()(lower(mod)))]
    assert found == [(f"mm {i}", f"add {i}") for i in range(60)]


def test_a_module_without_functions_is_left_alone():
    assert structural_equal(FuseOperators()(tvm.IRModule()), tvm.IRModule())


@pytest.mark.parametrize("is_field", [False, True])
def test_a_kernel_whose_result_is_cast_waits_for_nothing_behind_the_cast(is_field):
    """FuseOps would join the first kernel with the last, which reads what the cast leads to."""
    builder = relax.BlockBuilder()
    columns = tvm.tirx.Var("k", "int64")
    x = relax.Var("x", relax.TensorType([4 if is_field else 2, columns], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.split(x, 2) if is_field else op.add(x, x))
            y = builder.emit(relax.TupleGetItem(y, 0)) if is_field else y
            cast = builder.match_cast(y, relax.TensorType([2, 3], "float32"))
            product = builder.emit(op.matmul(cast, weight(3, 3)))
            joined = builder.emit(op.concat([product, y], axis=1))
            result = builder.emit_output(joined)
        builder.emit_func_output(result)
    before = lower(builder.get())
    assert not relax.analysis.check_well_formed(relax.transform.FuseOps()(before), check_ty=False)
    after = FuseOperators()(before)
    assert relax.analysis.check_well_formed(after, check_ty=False)


def test_a_cast_to_an_expression_defines_no_size():
    """FuseOps moves it, for the sake of its reader, in front of the cast that defines ``n``."""
    rows = tvm.tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(dtype="float32", ndim=2)) for name in "xy")
    z = relax.Var("z", TYPE)
    with builder.function("main", [x, y, z]):
        with builder.dataflow():
            start = builder.emit(nn.relu(z))
            builder.match_cast(x, relax.TensorType([rows, 3], "float32"))
            cast = builder.match_cast(y, relax.TensorType([rows - 1, 3], "float32"))
            result = builder.emit_output(op.concat([start, cast], axis=0))
        builder.emit_func_output(result)
    before = lower(builder.get())
    fused = relax.transform.FuseOps()(before)
    assert not relax.analysis.check_well_formed(fused, check_ty=False)
    assert relax.analysis.check_well_formed(FuseOperators()(before), check_ty=False)


def test_results_of_kernels_of_several_stay_out_of_groups():
    def times(x: te.Tensor, factor: int) -> te.Tensor:
        return te.compute(x.shape, lambda i, j: x(i, j) * factor, f"times{factor}")

    def three(x: te.Tensor) -> list[te.Tensor]:
        return [times(x, factor) for factor in (2, 3, 4)]

    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    opaque = {"op_pattern": OPAQUE}
    with builder.function("main", [x]):
        with builder.dataflow():
            kernels = [
                builder.emit(builder.call_te(three, x, primfunc_attrs=opaque)) for _ in range(30)
            ]
            total = x
            for made in kernels:
                for place in range(3):
                    field = builder.emit(relax.TupleGetItem(made, place))
                    scaled = builder.emit(op.multiply(field, weight(2, 3, seed=place)))
                    total = builder.emit(op.add(total, scaled))
            total = builder.emit_output(total)
        builder.emit_func_output(total)
    before = lower(builder.get())
    after = FuseOperators()(before)
    assert relax.analysis.check_well_formed(after)
    groups = [f for f in after.functions.values() if "Primitive" in (f.attrs or {})]
    assert groups
    assert not any(isinstance(p.ty, relax.TupleType) for group in groups for p in group.params)
    assert_same_numbers(after, before)
