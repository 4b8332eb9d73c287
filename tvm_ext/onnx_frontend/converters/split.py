"""Split by sizes that are computed in the run, which TVM's converter refuses."""

import itertools
from typing import Any

from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    constant_integers,
    integer_tensor,
    vector_length,
)


class Split(OnnxOpConverter):
    """Parts of given sizes, or as many equal ones as there are outputs, the last one smaller."""

    @classmethod
    def _impl_v2(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        parts = attr.get("split")
        return _split(bb, inputs[0], list(parts) if parts else None, attr)

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        if inputs[1] is None:
            return _split(bb, inputs[0], None, attr)
        parts = constant_integers(inputs[1], params)
        if parts is not None:
            return _split(bb, inputs[0], parts, attr)
        return _split_in_the_run(bb, inputs[0], integer_tensor(bb, inputs[1]), attr)


def _split(
    bb: relax.BlockBuilder, data: relax.Expr, parts: list[Any] | None, attr: dict
) -> relax.Expr:
    sizes = sizes_of(data)
    axis = attr.get("axis", 0) % len(sizes)
    count, size = attr["tvm_custom"]["num_outputs"], sizes[axis]
    if parts is None:
        if not isinstance(size, int):
            raise FormError("it splits a symbolic dimension into equal parts")
        each = -(-size // count)
        parts = [max(0, min(each, size - place * each)) for place in range(count)]
    if len(parts) != count or (isinstance(size, int) and sum(parts) != size):
        raise FormError(f"it splits size {size} into {len(parts)} parts of {parts}")
    if count == 1:
        return data
    ends = list(itertools.accumulate(parts))
    if 0 not in parts:
        return relax.op.split(data, ends[:-1], axis)
    # TVM's kernel wants every part to have elements.
    return relax.Tuple(
        [
            bb.emit(relax.op.strided_slice(data, [axis], [end - part], [end]))
            for part, end in zip(parts, ends, strict=True)
        ]
    )


def _split_in_the_run(
    bb: relax.BlockBuilder, data: relax.Expr, parts: relax.Expr, attr: dict
) -> relax.Expr:
    sizes = sizes_of(data)
    axis, count = attr.get("axis", 0) % len(sizes), vector_length(parts, "parts")
    names = [f"part_{place}" for place in range(count)]
    found = computed_dimensions(
        bb, names, lambda given: [given[place] for place in range(count)], parts
    )

    def kernel(data: te.Tensor, size: tirx.Var, earlier: list[tirx.Var]) -> te.Tensor:
        start = sum(earlier, tirx.const(0, "int64"))
        shape = [size if place == axis else extent for place, extent in enumerate(data.shape)]

        def read(*index: tirx.Var) -> tirx.Expr:
            # Parts that add up to more than there is would read behind the data.
            inside = tirx.min(index[axis] + start, data.shape[axis] - 1)
            return data(*index[:axis], inside, *index[axis + 1 :])

        return te.compute(shape, read, name="part")

    return relax.Tuple(
        [
            bb.emit_te(kernel, data, size, found[:place], primfunc_name_hint="part")
            for place, size in enumerate(found)
        ]
    )
