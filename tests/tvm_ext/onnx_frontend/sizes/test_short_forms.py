"""Sizes that are clipped and joined have one short form, and it is what they are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.onnx_frontend.sizes.short_forms import is_clipped, short_form
from tvm_ext.tir_schedules.analysis.loop_nest import substitute

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def rolled(size: tirx.Expr, number: int) -> tirx.Expr:
    """The size of what is cut at a place and joined the other way round."""
    return tirx.max(size - number, 0) + tirx.min(size, number)


@pytest.mark.parametrize(
    ("size", "short"),
    [
        (rolled(N, 1), "n"),
        (rolled(rolled(N, 3), 2), "n"),
        (rolled(N * M, 1), "n * m"),
        (rolled(N + M, 2), "n + m"),
        (rolled(N, 1) * M, "n * m"),
        (rolled(N, 1) + rolled(M, 4) + 1, "n + m + 1"),
        (tirx.floordiv(rolled(N, 2), 2), "n // 2"),
        (tirx.min(N, 4), "T.min(n, 4)"),
        (tirx.min(N, M), "T.min(n, m)"),
        (N + M, "n + m"),
    ],
)
def test_short_forms(size: tirx.Expr, short: str) -> None:
    plain = str(short_form(size)).replace("T.int64(", "")
    assert plain.replace(")", "") == short.replace(")", "")


def test_only_minima_and_maxima_count_as_clipped() -> None:
    assert is_clipped(rolled(N, 1))
    assert not is_clipped(tirx.floordiv(N + 3, 4) * 4)
    assert not is_clipped(5)


def sizes() -> st.SearchStrategy[Any]:
    """Sizes of two dimensions, clipped, joined, multiplied and divided."""

    def more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        pairs, numbered = st.tuples(inner, inner), st.tuples(inner, st.integers(1, 5))
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]),
            pairs.map(lambda p: p[0] * p[1]),
            pairs.map(lambda p: tirx.min(p[0], p[1])),
            pairs.map(lambda p: tirx.max(p[0] - p[1], 0)),
            numbered.map(lambda p: rolled(p[0], p[1])),
            numbered.map(lambda p: tirx.floordiv(p[0], p[1])),
        )

    return st.recursive(st.sampled_from([N, M]), more, max_leaves=5)


@given(sizes(), st.integers(0, 40), st.integers(0, 40))
def test_a_short_form_is_the_same_size(size: Any, n: int, m: int) -> None:
    values = {N: tirx.const(n, "int64"), M: tirx.const(m, "int64")}
    plain, short = (
        int(Analyzer().simplify(substitute(one, values))) for one in (size, short_form(size))
    )
    assert plain == short
