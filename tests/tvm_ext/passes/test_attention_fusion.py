"""What AttentionFusion reads out of a graph, and what holds for every pass, with a GPU as target.

The forms of exported models are in tests/tvm_ext/passes/test_attention_models.py.
"""

import numpy as np
import pytest
import tvm
from gemm_modules import module, operators_of, tensor
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.configs.decision import Decision
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.attention_fusion import AttentionFusion
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.tir_schedules.operators.attention import ATTRIBUTE, AttentionCompute, Mask

op = relax.op
LOWEST = float(np.finfo("float32").min)


def fused(mod: tvm.IRModule, target: str = "nvidia-a100") -> tuple[tvm.IRModule, Decision]:
    with compiling_for(resolve_target(target)), recording() as decisions:
        changed = AttentionFusion()(mod)
    return changed, decisions[-1] if decisions else None


def computed(mod: tvm.IRModule) -> AttentionCompute:
    changed, decision = fused(mod)
    assert decision.applied, decision.reason
    functions = [f for f in changed.functions.values() if isinstance(f, tirx.PrimFunc)]
    (func,) = functions
    return AttentionCompute.from_attribute(str(func.attrs[ATTRIBUTE]))


def attention(change=lambda x: x, dtype="float32", queries=6, keys=6, **weights):
    """``softmax(change(q k^T)) v``; keys lie as [batch, positions, heads, elements]."""
    params = [
        tensor("q", (2, 3, queries, 8), dtype),
        tensor("k", (2, keys, 3, 8), dtype),
        tensor("v", (2, 3, keys, 8), dtype),
    ]
    steps = [
        lambda q, k, v: op.permute_dims(k, [0, 2, 3, 1]),
        lambda *x: op.matmul(x[0], x[-1]),
        lambda *x: change(x[-1]),
        lambda *x: op.nn.softmax(x[-1], axis=-1),
        lambda *x: op.matmul(x[-1], x[2]),
    ]
    return module(params, steps)


def scaled(x):
    return op.multiply(x, relax.const(0.25))


def capped(x):
    share = op.tanh(op.multiply(x, relax.const(0.01)))
    return op.multiply(share, relax.const(50.0))


def test_scores_are_capped_on_cpus():
    changed, decision = fused(attention(capped), "avx512")
    assert decision.applied, decision.reason
    (func,) = (f for f in changed.functions.values() if isinstance(f, tirx.PrimFunc))
    found = AttentionCompute.from_attribute(str(func.attrs[ATTRIBUTE]))
    assert (found.cap, found.scale) == (pytest.approx(50), pytest.approx(0.5))
    _, decision = fused(attention(capped))
    assert decision.reason == "there is no kernel for scores that are capped"


def test_masks_ahead_of_a_cap_stay():
    masked = attention(lambda x: capped(op.add(x, relax.const(np.ones((6, 6), "float32")))))
    _, decision = fused(masked, "avx512")
    assert decision.reason == "scores are masked before they are capped"


def test_layouts_and_scale():
    found = computed(attention(scaled))
    assert (found.query, found.key, found.value, found.output) == ("bhsd", "bshd", "bhsd", "bhsd")
    assert (found.scale, found.group, found.causal, found.masks) == (0.25, 1, None, ())


def constant_mask(array):
    return lambda x: op.add(scaled(x), relax.const(array.astype("float32")))


@pytest.mark.parametrize(
    ("array", "causal"),
    [
        (np.where(np.tri(6, dtype=bool), 0, -np.inf), 0),
        (np.where(np.tri(6, dtype=bool), 0, LOWEST), 0),
        (np.where(np.tri(6, 6, 2, dtype=bool), 0, LOWEST)[None, None], 2),
        (np.where(np.tri(6, dtype=bool), 0, -1e9), 0),
        (np.zeros((6, 6)), None),
    ],
)
def test_a_constant_mask_becomes_a_rule(array, causal):
    found = computed(attention(constant_mask(array)))
    assert (found.causal, found.masks) == (causal, ())


@pytest.mark.parametrize(
    "array",
    [
        np.where(np.tri(6, dtype=bool), 0, -1e4),
        np.where(np.tri(6, 6, -1, dtype=bool), 0, LOWEST),
        np.where(np.tri(6, dtype=bool), 0.5, -np.inf),
        np.where(np.tri(6, dtype=bool).T, 0, -np.inf),
        np.full((6, 6), -np.inf),
        np.zeros((6, 6)) + np.arange(6),
    ],
)
def test_other_constant_masks_are_read(array):
    found = computed(attention(constant_mask(array)))
    assert (found.causal, found.masks) == (None, (Mask("add", "qk"),))


def test_a_constant_row_that_hides_keys_is_the_same_for_all_queries():
    padding = np.where(np.arange(6) < 4, 0, -np.inf)[None, None, None]
    found = computed(attention(constant_mask(padding)))
    assert (found.causal, found.masks) == (None, (Mask("add", "bhqk"),))
    found = computed(attention(constant_mask(padding), queries=1))
    assert (found.causal, found.masks) == (3, ())


def test_numbers_far_below_are_no_rule_beside_another_mask():
    """Keys that it hides as far have a weight where a query sees no others."""

    def masked(low):
        padding = relax.const(np.full((2, 1, 1, 6), 0.5, "float32"))
        triangle = np.where(np.tri(6, dtype=bool), 0, low)
        return computed(attention(lambda x: op.add(constant_mask(triangle)(x), padding)))

    assert (masked(-1e9).causal, len(masked(-1e9).masks)) == (None, 2)
    assert (masked(-np.inf).causal, len(masked(-np.inf).masks)) == (0, 1)


def test_scores_that_are_replaced():
    seen = relax.const(np.tri(6, 6, dtype=bool))
    found = computed(attention(lambda x: op.where(seen, x, relax.const(-1e4))))
    assert found.masks == (Mask("keep", "qk", -1e4),)
    found = computed(attention(lambda x: op.where(seen, x, relax.const(-1e9))))
    assert (found.masks, found.causal) == ((), 0)
    found = computed(attention(lambda x: op.where(seen, x, relax.const(-np.inf, "float32"))))
    assert (found.masks, found.causal) == ((), 0)
    found = computed(attention(lambda x: op.where(seen, relax.const(-5.0), x)))
    assert found.masks == (Mask("drop", "qk", -5.0),)


@pytest.mark.parametrize(
    ("mod", "reason"),
    [
        (attention(lambda x: op.multiply(x, relax.const(0.0))), "one number above zero"),
        (attention(lambda x: scaled(constant_mask(np.ones((6, 6)))(x))), "scaled after a mask"),
        (attention(queries=tirx.Var("n", "int64")), "symbolic"),
    ],
)
def test_refusals(mod, reason):
    changed, decision = fused(mod)
    assert not decision.applied
    assert reason in decision.reason
    assert structural_equal(changed, mod)


def test_other_targets_and_other_products_are_left_alone():
    mod = attention(scaled)
    assert fused(mod, "wse3") == (mod, None)
    plain = module([tensor("a", (4, 5, 6)), tensor("b", (4, 6, 5))], [lambda a, b: op.matmul(a, b)])
    assert fused(plain) == (plain, None)


def test_pure_well_formed_and_idempotent():
    mod = attention(scaled)
    text = mod.script(show_meta=True)
    changed, _ = fused(mod)
    assert mod.script(show_meta=True) == text
    relax.analysis.well_formed(changed)
    assert operators_of(changed) == ["relax.call_tir"]
    assert structural_equal(fused(changed)[0], changed)
