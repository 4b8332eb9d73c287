"""The code of what kernels leave to a library, by TVM's code generator for it."""

import tvm
from tvm import relax
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix

from tvm_ext.hardware.cuda.vendor_libraries import CODE_GENERATORS
from tvm_ext.tir_schedules.cuda.library.library_call import LibraryProduct, library_products


def library_modules(mod: tvm.IRModule) -> list[tvm.runtime.Module]:
    """Modules to import into that of the kernels; none where these call no library.

    Raises RuntimeError where TVM has no code generator, or that does not take a product.
    """
    return [module for product in library_products(mod) for module in _modules(product)]


def argument_order(product: LibraryProduct) -> list[int]:
    """Which of A (0), B (1) and the bias (2) the library's function takes first, and so on."""
    return _partitioned(product)[1]


def _modules(product: LibraryProduct) -> list[tvm.runtime.Module]:
    name = CODE_GENERATORS["cuBLAS"]
    generate = tvm.get_global_func(name, allow_missing=True)
    if generate is None:
        raise RuntimeError(f"{name} is missing: this TVM was built without cuBLAS")
    return list(generate([_partitioned(product)[0]], {}, {}))


def _partitioned(product: LibraryProduct) -> tuple[relax.Function, list[int]]:
    """The function for the code generator, and which operands its parameters are."""
    # Registers the patterns.
    from tvm.relax.backend.cuda import cublas  # noqa: F401

    mod = _graph(product)
    partition = relax.transform.FuseOpsByPattern(
        get_patterns_with_prefix("cublas"), bind_constants=False, annotate_codegen=True
    )
    cut = partition(mod)
    (binding, *rest) = cut["main"].body.blocks[0].bindings
    call = binding.value
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.GlobalVar):
        raise RuntimeError(f"TVM's patterns for cuBLAS do not take {product.symbol}")
    if any(isinstance(one.value, relax.Call) for one in rest):
        raise RuntimeError(f"TVM's patterns for cuBLAS take a part of {product.symbol} only")
    params = list(cut["main"].params)
    order = [next(i for i, p in enumerate(params) if p.same_as(arg)) for arg in call.args]
    return cut[call.op].with_attr("global_symbol", product.symbol), order


def _graph(product: LibraryProduct) -> tvm.IRModule:
    """The product as a program of Relax."""
    *shapes, _ = product.shapes
    *dtypes, _ = product.dtypes
    names = ("a", "b", "bias")
    types = [relax.TensorType(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    params = [relax.Var(name, ty) for name, ty in zip(names, types, strict=False)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            output = builder.emit_output(_emitted(builder, product, params))
        builder.emit_func_output(output)
    return builder.get()


def _emitted(
    builder: relax.BlockBuilder, product: LibraryProduct, params: list[relax.Var]
) -> relax.Expr:
    """The result of the operators that TVM's patterns look for."""
    left, right, *bias = params
    if product.transposed:
        last = len(product.shapes[1]) - 1
        axes = [*range(last - 1), last, last - 1]
        right = builder.emit(relax.op.permute_dims(right, axes))
    result = relax.op.matmul(left, right, out_dtype=product.result)
    if bias:
        result = relax.op.add(builder.emit(result), bias[0])
    if product.epilogue == "bias_relu":
        result = relax.op.nn.relu(builder.emit(result))
    return result
