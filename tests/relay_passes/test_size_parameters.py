"""Functions of FuseOps that take some sizes one by one and others as a shape."""

import numpy as np
import tvm
from tvm import relax, tirx
from unoptimised import machine_of

from tvm_ext.relay_passes.fuse_operators import FuseOperators, sizes_in_one_shape


def module() -> tvm.IRModule:
    """``arange(n) + shape(y)``: n stands in a shape, m is read."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType((n,), "float32"))
    y = relax.Var("y", relax.TensorType((m,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
            counted = builder.emit(relax.op.arange(zero, n, one, "int64"))
            size = builder.emit(relax.op.shape_to_tensor(relax.ShapeExpr([m])))
            result = builder.emit_output(relax.op.add(counted, size))
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps()(builder.get())
    return relax.transform.AnnotateTIROpPattern()(mod)


def test_one_parameter_holds_all_sizes() -> None:
    fused = relax.transform.FuseOps()(module())
    (group,) = [f for f in fused.functions.values() if "Primitive" in (f.attrs or {})]
    kinds = {type(param.ty) for param in group.params}
    assert kinds == {tvm.ir.PrimType, relax.ShapeType}, "what TVM's FuseTIR fails on"
    changed = sizes_in_one_shape(fused)
    (group,) = [f for f in changed.functions.values() if "Primitive" in (f.attrs or {})]
    assert [type(param.ty) for param in group.params] == [relax.ShapeType]
    assert sizes_in_one_shape(changed).same_as(changed)


def test_the_fused_kernel_computes_the_same() -> None:
    kernels = relax.transform.FuseTIR()(FuseOperators()(module()))
    machine = machine_of(kernels)
    arrays = [tvm.runtime.tensor(np.zeros(size, "float32")) for size in (4, 7)]
    assert machine["main"](*arrays).numpy().tolist() == [7, 8, 9, 10]
