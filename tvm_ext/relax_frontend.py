"""A model that is in Relax already: written by hand, or made by one of TVM's importers."""

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax, tirx

from tvm_ext.errors import InputError, ModelError
from tvm_ext.onnx_frontend import ImportedModel
from tvm_ext.passes.runner import is_well_formed
from tvm_ext.relay_passes.graph_pass import OPAQUE
from tvm_ext.tensor_spec import SizeRange, SymbolicSize, TensorSpec, parse_size
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent

_NAME = "module"


def import_relax(
    mod: tvm.IRModule, input_shapes: Mapping[str, Sequence[int | str]] | None = None
) -> ImportedModel:
    """A Relax module as the graph passes take it.

    The parameters of its function ``main`` are the inputs, under their names; a result is called
    ``output``, several ``output_0`` and so on. ``input_shapes`` freeze symbolic sizes or limit
    them, as for ONNX; they change no size that the module fixes.

    Raises
    ------
    ModelError, InputError
        There is no function ``main`` of tensors, the module is not well-formed, or the shapes do
        not fit it.
    """
    main = _main_of(mod)
    sizes, ranges = _sizes(main, input_shapes or {})
    if sizes:
        mod = relax.transform.BindSymbolicVars(sizes, "main")(mod)
    mod = normalized(mod)
    main = mod["main"]
    result = main.ret_ty
    types = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    names = [f"output_{i}" for i in range(len(types))] if len(types) > 1 else ["output"]
    return ImportedModel(
        name=_NAME,
        mod=mod,
        inputs=tuple(_spec(str(param.name), param.ty, ranges) for param in main.params),
        outputs=tuple(_spec(name, ty, {}) for name, ty in zip(names, types, strict=True)),
        onnx_operators={},
        prepared_operators={},
        ranges=ranges,
    )


def normalized(mod: tvm.IRModule) -> tvm.IRModule:
    """A module that was written by hand, or by an importer, in the form that graph passes expect.

    They look at dataflow blocks alone: what is pure becomes one.
    """
    steps = [relax.transform.Normalize(), relax.transform.ConvertToDataflow(min_size=1)]
    kernels = {
        variable: _kernel(func, str(variable.name_hint))
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    marked = tvm.IRModule({**dict(mod.functions.items()), **kernels}, attrs=mod.attrs)
    return tvm.transform.Sequential(steps)(marked)


def _kernel(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """A kernel under the name that the module has for it: ``te.create_prim_func`` says "main".

    It gets a note where TVM cannot fuse it with those of operators: kernels written by hand have
    sizes of 32 bits, those of operators of 64.
    """
    if "global_symbol" in func.attrs:
        func = func.with_attr("global_symbol", name)
    sizes = [size for param in func.params for size in getattr(param, "shape", ())]
    if any(str(size.ty.dtype) != "int64" for size in sizes):
        func = func.with_attr("op_pattern", OPAQUE)
    return func


def _main_of(mod: tvm.IRModule) -> relax.Function:
    names = sorted(str(var.name_hint) for var in mod.functions)
    if "main" not in names or not isinstance(mod["main"], relax.Function):
        raise ModelError(
            f"the module has the functions {', '.join(names) or 'none'}; expected a Relax function "
            "'main' that is the model: rename it"
        )
    if not is_well_formed(mod):
        raise ModelError(
            "the module is not well-formed; expected one that relax.analysis.check_well_formed "
            "takes: see what it prints"
        )
    return mod["main"]


def _sizes(
    main: relax.Function, input_shapes: Mapping[str, Sequence[int | str]]
) -> tuple[dict[tirx.Var, int], dict[str, SizeRange]]:
    """What becomes of symbolic sizes: those that are frozen, and the ranges of others by name."""
    shapes = {str(param.name): _shape(str(param.name), param.ty) for param in main.params}
    frozen: dict[tirx.Var, int] = {}
    ranges: dict[str, SizeRange] = {}
    for name, given in input_shapes.items():
        if name not in shapes or len(given) != len(shapes[name]):
            known = ", ".join(f"{key} of rank {len(shape)}" for key, shape in shapes.items())
            raise InputError(
                f"input_shapes has {len(given)} size(s) for '{name}'; expected the module's "
                f"inputs, one size for each dimension: {known}"
            )
        for axis, (size, asked) in enumerate(zip(shapes[name], given, strict=True)):
            wanted = parse_size(asked) if isinstance(asked, str) else asked
            if isinstance(size, tirx.Var) and isinstance(wanted, int) and wanted > 0:
                frozen[size] = wanted
            elif isinstance(size, tirx.Var) and isinstance(wanted, SymbolicSize):
                if wanted.range is not None:
                    ranges[str(size.name)] = wanted.range
            elif wanted != static_extent(size):
                raise InputError(
                    f"input_shapes gives dimension {axis} of '{name}' as {asked!r}, which the "
                    f"module has as {size}; expected that, or a size for a symbolic dimension: "
                    "change the module"
                )
    return frozen, ranges


def _shape(name: str, ty: tvm.ir.Type) -> list[tirx.Expr]:
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        raise ModelError(
            f"'{name}' of the module's main is a {type(ty).__name__} without a shape; expected "
            "tensors whose sizes are numbers or symbolic: give it a shape with match_cast, or "
            "pass tensors one by one"
        )
    return list(ty.shape.values)


def _spec(name: str, ty: tvm.ir.Type, ranges: Mapping[str, SizeRange]) -> TensorSpec:
    known = [(size, static_extent(size)) for size in _shape(name, ty)]
    shape = tuple(_named(size) if extent is None else extent for size, extent in known)
    allowed = tuple(ranges.get(str(size)) for size in shape)
    return TensorSpec(name, str(ty.dtype), shape, allowed if any(allowed) else ())


def _named(size: tirx.Expr) -> str:
    # As text, names that TVMScript takes for itself ("T", "R") become others.
    return str(size.name) if isinstance(size, tirx.Var) else str(size)
