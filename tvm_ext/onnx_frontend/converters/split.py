"""Split of symbolic sizes, and by sizes of the run; TVM's converter refuses both."""

import itertools
from typing import Any

from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.runtime_sizes import sizes_in_the_run, wide
from tvm_ext.onnx_frontend.converters.traits import takes_sizes
from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of


@takes_sizes(1)
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
        return _split(bb, inputs[0], sizes_in_the_run(bb, inputs[1], params, "part"), attr)


def _split(
    bb: relax.BlockBuilder, data: relax.Expr, parts: list[Any] | None, attr: dict
) -> relax.Expr:
    sizes = sizes_of(data)
    axis = attr.get("axis", 0) % len(sizes)
    count, size = attr["tvm_custom"]["num_outputs"], sizes[axis]
    if parts is None:
        parts = _equal_parts(size, count)
    if len(parts) == count and not all(isinstance(part, int) for part in parts):
        return _open_parts(bb, data, parts, axis)
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


def _equal_parts(size: Any, count: int) -> list[Any]:
    """The sizes of equal parts; the last ones may be smaller, or empty."""
    if isinstance(size, int):
        each = -(-size // count)
        return [max(0, min(each, size - place * each)) for place in range(count)]
    analyzer = analyzer_of(size)
    each = tirx.floordiv(size + (count - 1), wide(count))
    parts = [tirx.max(tirx.min(each, size - place * each), wide(0)) for place in range(count)]
    return [analyzer.simplify(part) for part in parts]


def _open_parts(
    bb: relax.BlockBuilder, data: relax.Expr, parts: list[Any], axis: int
) -> relax.Expr:
    def kernel(data: te.Tensor, size: Any, earlier: list[Any]) -> te.Tensor:
        start = sum(map(wide, earlier), wide(0))
        shape = [size if place == axis else extent for place, extent in enumerate(data.shape)]

        def read(*index: tirx.Var) -> tirx.Expr:
            # Parts that add up to more than there is would read behind the data.
            inside = tirx.min(wide(index[axis]) + start, data.shape[axis] - 1)
            return data(*index[:axis], inside, *index[axis + 1 :])

        return te.compute(shape, read, name="part")

    return relax.Tuple(
        [
            bb.emit_te(kernel, data, size, parts[:place], primfunc_name_hint="part")
            for place, size in enumerate(parts)
        ]
    )
