"""Tensors that are cut and joined to the size that they had, which operators must see.

Each case makes ``c`` of ``v``, of open sizes, and adds it to a tensor of the sizes that ``c`` must
have. That the sizes are equal follows from cases only: ``max(n - 1, 0) + min(1, n)`` is n.
"""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi
from one_model import in_one_model, program
from onnx import parser
from tvm import relax, tirx

from tvm_ext.onnx_frontend import importer
from tvm_ext.relay_passes.spans import all_bindings_of

FAR = 1 << 40
STORED = (
    f"int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] i2 = {{2}}, int64[1] i3 = {{3}}, "
    f"int64[1] i4 = {{4}}, int64[1] m1 = {{-1}}, int64[1] m2 = {{-2}}, int64[1] m3 = {{-3}}, "
    f"int64[1] far = {{{FAR}}}, int64[1] low = {{{-FAR}}}, int64 one = {{1}}, int64 two = {{2}}, "
    "int64[2] i00 = {0, 0}, int64[4] after_1 = {0, 0, 1, 0}, int64[4] after_3 = {0, 0, 3, 0}, "
    "int64[4] around_1 = {1, 0, 1, 0}, int64[4] before_1 = {1, 0, 0, 0}, float zero = {0.0}"
)
SIZE = "s = Shape<start = 0, end = 1>(v) rest = Shape<start = 1>(v) "
CHOICE = "total = ReduceSum<keepdims = 0>(x) is_more = Greater(total, zero) "
CUT_BRANCH = "a = Slice(v, i1, far, i0) b = Slice(v, i0, i1, i0) "

ROLLS = {
    "by 1": "a = Slice(v, i1, far, i0) b = Slice(v, i0, i1, i0) c = Concat<axis = 0>(a, b)",
    "by 2": "a = Slice(v, i2, far, i0) b = Slice(v, i0, i2, i0) c = Concat<axis = 0>(a, b)",
    "by -1": "a = Slice(v, m1, far, i0) b = Slice(v, i0, m1, i0) c = Concat<axis = 0>(a, b)",
    "by -3": "a = Slice(v, m3, far, i0) b = Slice(v, low, m3, i0) c = Concat<axis = 0>(a, b)",
    "the last first": "a = Slice(v, low, m2, i0) b = Slice(v, m2, far, i0) "
    "c = Concat<axis = 0>(b, a)",
    "in three parts": "a = Slice(v, i0, i1, i0) b = Slice(v, i1, m1, i0) d = Slice(v, m1, far, i0) "
    "e = Concat<axis = 0>(d, b, a) c = Slice(e, i0, far, i0)",
    "there and back": "a = Slice(v, i3, far, i0) b = Slice(v, i0, i3, i0) "
    "e = Concat<axis = 0>(a, b) f = Slice(e, m3, far, i0) g = Slice(e, low, m3, i0) "
    "c = Concat<axis = 0>(f, g)",
    "every second": "a = Slice(v, i0, far, i0, i2) b = Slice(v, i1, far, i0, i2) "
    "c = Concat<axis = 0>(a, b)",
    "every second backward": "a = Slice(v, m1, low, i0, m2) b = Slice(v, m2, low, i0, m2) "
    "c = Concat<axis = 0>(a, b)",
    "backward": "c = Slice(v, m1, low, i0, m1)",
    "differences": "a = Slice(v, i1, far, i0) b = Slice(v, i0, m1, i0) d = Sub(a, b) "
    "f = Slice(v, i0, i1, i0) c = Concat<axis = 0>(f, d)",
    "in a loop": "three = Squeeze(i3) go = Greater(two, one) c = Loop(three, go, v)<body = body "
    "(int64 turn, bool on, float[p, 7] held) => (bool still, float[q, 7] next) {still = "
    "Identity(on) a = Slice(held, i1, far, i0) b = Slice(held, i0, i1, i0) "
    "e = Concat<axis = 0>(a, b) next = Add(e, x)}>",
    "in a branch": f"{CHOICE} c = If(is_more)<then_branch = then () => (float[p, 7] first) "
    f"{{{CUT_BRANCH} first = Concat<axis = 0>(a, b)}}, else_branch = other () => "
    "(float[q, 7] second) {second = Neg(v)}>",
}
PADDED = {
    "behind": "a = Pad(v, after_3) c = Slice(a, i0, m3, i0)",
    "to the size": f"{SIZE} a = Pad(v, after_3) c = Slice(a, i0, s, i0)",
    "around": "a = Pad(v, around_1) c = Slice(a, i1, m1, i0)",
    "shifted": "a = Slice(v, i0, m1, i0) c = Pad(a, before_1)",
    "one in front": "a = Slice(v, i0, i1, i0) b = Concat<axis = 0>(a, v) c = Slice(b, i0, m1, i0)",
    "to pairs": f"{SIZE} r = Mod(s, i2) o = Sub(i2, r) t = Mod(o, i2) "
    "z = Concat<axis = 0>(i00, t, i0) a = Pad(v, z) h = Concat<axis = 0>(m1, i2, rest) "
    "g = Reshape(a, h) u = Concat<axis = 0>(m1, rest) k = Reshape(g, u) c = Slice(k, i0, s, i0)",
    "to windows": f"{SIZE} more = Add(s, i3) d = Div(more, i4) t = Mul(d, i4) o = Sub(t, s) "
    "z = Concat<axis = 0>(i00, o, i0) a = Pad(v, z) c = Slice(a, i0, s, i0)",
    "to half, rounded up, twice": f"{SIZE} more = Add(s, i1) h = Div(more, i2) d = Mul(h, i2) "
    "o = Sub(d, s) z = Concat<axis = 0>(i00, o, i0) a = Pad(v, z) "
    "k = Concat<axis = 0>(h, i2, rest) g = Reshape(a, k) "
    "e = ReduceSum<keepdims = 0>(g, i1) f = Concat<axis = 0>(e, e) "
    "c = Slice(f, i0, s, i0)",
}
SPLIT = {
    "at the middle": f"{SIZE} h = Div(s, i2) a = Slice(v, i0, h, i0) b = Slice(v, h, far, i0) "
    "c = Concat<axis = 0>(b, a)",
    "at 4 at most": f"{SIZE} h = Min(s, i4) a = Slice(v, i0, h, i0) b = Slice(v, h, far, i0) "
    "c = Concat<axis = 0>(b, a)",
    "by sizes": f"{SIZE} h = Div(s, i2) r = Sub(s, h) t = Concat<axis = 0>(h, r) "
    "a, b = Split<axis = 0>(v, t) c = Concat<axis = 0>(b, a)",
    "into two": "a, b = Split<axis = 0, num_outputs = 2>(v) c = Concat<axis = 0>(b, a)",
    "into three": "a, b, d = Split<axis = 0, num_outputs = 3>(v) c = Concat<axis = 0>(b, d, a)",
}
COUNTED = {
    "n * 2 // 2": f"{SIZE} d = Mul(s, i2) h = Div(d, i2) u = Concat<axis = 0>(h, rest) "
    "c = Reshape(v, u)",
    "n * 4 // 4 rows": f"{SIZE} more = Mul(s, i4) d = Div(more, i4) c = Slice(v, i0, d, i0)",
    "pairs": f"{SIZE} a = Unsqueeze(v, i1) b = Concat<axis = 1>(a, a) "
    "u = Concat<axis = 0>(m1, rest) k = Reshape(b, u) c = Slice(k, s, far, i0)",
    "rolled places": f"{SIZE} t = Squeeze(s) z = Squeeze(i0) r = Range(z, t, one) o = Add(r, one) "
    "e = Mod(o, t) c = Gather<axis = 0>(v, e)",
    "halves of even numbers": f"{SIZE} d = Mul(s, i2) t = Squeeze(d) z = Squeeze(i0) "
    "r = Range(z, t, two) g = Div(r, two) c = Gather<axis = 0>(v, g)",
    "behind others": f"{SIZE} e = Shape<start = 0, end = 1>(w) j = Concat<axis = 0>(w, v) "
    "c = Slice(j, e, far, i0)",
    "the last of both": f"{SIZE} o = Neg(s) j = Concat<axis = 0>(w, v) c = Slice(j, o, far, i0)",
}
OF_TWO_SIZES = {
    "shifted along both": "a = Slice(v, i1, far, i0) b = Slice(v, i0, i1, i0) "
    "e = Concat<axis = 0>(a, b) f = Slice(e, i2, far, i1) g = Slice(e, i0, i2, i1) "
    "c = Concat<axis = 1>(f, g)",
    "shifted along both and back": "a = Slice(v, i3, far, i0) b = Slice(v, i0, i3, i0) "
    "e = Concat<axis = 0>(a, b) f = Slice(e, i3, far, i1) g = Slice(e, i0, i3, i1) "
    "h = Concat<axis = 1>(f, g) k = Slice(h, m3, far, i0) l = Slice(h, low, m3, i0) "
    "o = Concat<axis = 0>(k, l) p = Slice(o, m3, far, i1) q = Slice(o, low, m3, i1) "
    "c = Concat<axis = 1>(p, q)",
    "rolled as one row": "a = Reshape(v, m1) b = Slice(a, i1, far, i0) d = Slice(a, i0, i1, i0) "
    "e = Concat<axis = 0>(b, d) s = Shape(v) c = Reshape(e, s)",
}
JOINED = {
    "rolled together": "j = Concat<axis = 0>(v, w) b = Slice(j, i1, far, i0) "
    "d = Slice(j, i0, i1, i0) e = Concat<axis = 0>(b, d) k = Add(e, j) "
    "s = Shape<start = 0, end = 1>(v) c = Slice(k, i0, s, i0)",
    "cut apart": "j = Concat<axis = 0>(v, w) s = Shape<start = 0, end = 1>(v) "
    "b = Slice(j, s, far, i0) d = Slice(j, i0, s, i0) e = Concat<axis = 0>(b, d) k = Neg(e) "
    "t = Shape<start = 0, end = 1>(w) c = Slice(k, t, far, i0)",
}
CASES = [
    *(
        (body, "n, 7")
        for group in (ROLLS, PADDED, SPLIT, COUNTED, JOINED)
        for body in group.values()
    ),
    *((body, "n, m") for body in OF_TWO_SIZES.values()),
]


def of_open_sizes(body: str, sizes: str) -> onnx.ModelProto:
    """``y = c + x`` where the body makes ``c`` of ``v = -x``, and of ``w`` if it reads that."""
    other = ", float[k, 7] w" if re.search(r"\(w\)|\(w,|, w\)", body) else ""
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> identity (float[{sizes}] x{other}) => '
        f"(float[r, t] y) <{STORED}> {{ v = Neg(x) {body} y = Add(c, x) }}"
    )


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("level", ["O0", "O3"])
@pytest.mark.parametrize(("body", "sizes"), CASES)
def test_sizes_that_are_equal_by_cases(body: str, sizes: str, level: str) -> None:
    proto = of_open_sizes(body, sizes)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    reference = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    compiled = program(proto, level)
    rng = np.random.default_rng(0)
    for rows, others in ((5, 4), (1, 1), (2, 3), (8, 2)):
        # ONNX Runtime splits no single row into three.
        if rows == 1 and "num_outputs = 3" in body:
            continue
        columns = 7 if sizes.endswith("7") else others
        feeds = {"x": rng.standard_normal((rows, columns), "float32")}
        if len(proto.graph.input) > 1:
            feeds["w"] = rng.standard_normal((others, 7), "float32")
        (expected,) = reference.run(None, feeds)
        np.testing.assert_allclose(compiled.run(feeds)["y"], expected, rtol=1e-5, atol=1e-5)


def test_branches_with_sizes_written_otherwise_have_no_sizes_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM would take the size of one of them, and never end replacing it by the other."""
    monkeypatch.setattr(importer, "is_clipped", lambda size: False)
    mod = importer.import_graph(of_open_sizes(ROLLS["in a branch"], "n, 7"), "identity").mod
    found: list[relax.If] = []
    for func in mod.functions.values():
        tvm_ffi.structural_walk(func, (relax.If, found.append))
    (choice,) = found
    (result,) = choice.ty.fields[:]
    assert result.ndim == 2
    assert result.shape is None


def test_no_size_is_cast_to_a_variable_that_it_holds() -> None:
    """CanonicalizeBindings would put the size in place of the variable, in itself as well."""
    builder, size = relax.BlockBuilder(), tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([size, 2], "float32"))
    with builder.function("main", [x]):
        twice = builder.emit(relax.op.concat([x, x], axis=0))
        cast = builder.match_cast(twice, relax.TensorType([size, 2], "float32"))
        builder.emit_func_output(cast)
    mod = relax.transform.CanonicalizeBindings()(importer.with_plain_casts(builder.get()))
    assert tvm_ffi.structural_equal(mod["main"].ret_ty, x.ty, map_free_vars=True)
    casts = [one for one in all_bindings_of(mod["main"]) if isinstance(one, relax.MatchCast)]
    assert [isinstance(one.ty.shape, relax.ShapeExpr) for one in casts] == [False, True]
