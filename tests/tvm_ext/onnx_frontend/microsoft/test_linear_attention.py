"""Linear attention of com.microsoft, compared with ONNX Runtime."""

import numpy as np
import onnx
import pytest
from microsoft_models import compared, microsoft_model
from one_model import in_one_model
from small_models import rand

FLOAT = onnx.TensorProto.FLOAT
BATCH, TOKENS = 2, 3


def inputs(queries: int, keys: int, values: int, given: str) -> dict[str, np.ndarray]:
    """Heads of 4 elements for queries and keys, of 6 for values; ``given`` has d, b, s or D."""
    found = {
        "x": rand(BATCH, TOKENS, queries * 4),
        "xk": rand(BATCH, TOKENS, keys * 4) / 4,
        "xv": rand(BATCH, TOKENS, values * 6),
    }
    optional = {
        "xs": rand(BATCH, values, 4, 6) if "s" in given else None,
        "xd": -np.abs(rand(BATCH, TOKENS, values * (4 if "D" in given else 1))),
        "xb": np.abs(rand(BATCH, TOKENS, values)) if "b" in given else None,
    }
    if "d" not in given.lower():
        optional["xd"] = None
    for number, (name, array) in enumerate(optional.items()):
        found[name if array is not None else "_" * (number + 1)] = array
    return found


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("rule", "heads", "given"),
    [
        ("linear", (2, 2, 2), ""),
        ("linear", (4, 2, 2), "s"),
        ("gated", (2, 2, 2), "d"),
        ("gated", (4, 1, 1), "Ds"),
        ("delta", (2, 2, 2), "bs"),
        ("gated_delta", (2, 2, 2), "dbs"),
        ("gated_delta", (4, 2, 2), "Db"),
    ],
)
def test_linear_attention(rule: str, heads: tuple[int, int, int], given: str) -> None:
    proto, fed = microsoft_model(
        "LinearAttention",
        inputs(*heads, given),
        {"y": FLOAT, "state": FLOAT},
        17,
        q_num_heads=heads[0],
        kv_num_heads=heads[2],
        update_rule=rule,
    )
    for ours, wanted in compared(proto, fed):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("shape", "heads", "wide", "attributes"),
    [
        ((BATCH, TOKENS), (2, 2, 2), False, {}),
        ((BATCH * TOKENS,), (2, 2, 4), False, {"qk_l2_norm": 1, "beta_activation": "sigmoid"}),
        ((BATCH, TOKENS), (1, 1, 2), True, {"gate_activation": "softplus", "qk_l2_norm": 1}),
        ((BATCH * TOKENS,), (2, 2, 2), False, {"gate_activation": "sigmoid", "scale": 0.5}),
        ((BATCH, TOKENS), (2, 2, 2), False, {"update_rule": "gated"}),
        ((BATCH, TOKENS), (2, 2, 2), False, {"update_rule": "delta"}),
        ((BATCH, TOKENS), (2, 2, 2), False, {"update_rule": "linear"}),
    ],
)
def test_gated_delta_net(
    shape: tuple[int, ...], heads: tuple[int, int, int], wide: bool, attributes: dict
) -> None:
    queries, keys, values = heads
    given = {
        "x": rand(*shape, queries, 4),
        "xk": rand(*shape, keys, 4) / 4,
        "xv": rand(*shape, values, 6),
        "_": None,
        "xd": -np.abs(rand(*shape, values, *[4] * wide)),
        "xb": np.abs(rand(*shape, values)),
        "xs": rand(BATCH, values, 6, 4),
    }
    rule = attributes.get("update_rule", "gated_delta")
    if "gated" not in rule:
        given["__"] = given.pop("xd")
    if "delta" not in rule:
        given["___"] = given.pop("xb")
    order = ("x", "xk", "xv", "_", "xd", "__", "xb", "___", "xs")
    given = {name: given[name] for name in order if name in given}
    if "gate_activation" in attributes:
        given |= {"xa": rand(values), "xt": rand(values, *[4] * wide)}
    proto, fed = microsoft_model(
        "GatedDeltaNet", given, {"y": FLOAT, "state": FLOAT}, 17, **attributes
    )
    for ours, wanted in compared(proto, fed):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@in_one_model
@pytest.mark.parametrize(
    ("operator", "given", "outputs", "attributes"),
    [
        (
            "LinearAttentionGate",
            {"x": rand(2, 3, 4), "xt": rand(4), "xs": -np.abs(rand(4)), "xb": rand(2, 3, 4)},
            {"decay": FLOAT, "beta": FLOAT},
            {},
        ),
        (
            "GatedRMSNorm",
            {"x": rand(2, 3, 8), "xs": rand(8), "xg": rand(2, 3, 8)},
            {"y": FLOAT},
            {},
        ),
        (
            "GatedRMSNorm",
            {"x": rand(2, 3, 8), "xs": rand(4), "xg": rand(2, 3, 8)},
            {"y": FLOAT},
            {"activation": "sigmoid", "epsilon": 0.01},
        ),
    ],
)
def test_gates(operator: str, given: dict, outputs: dict, attributes: dict) -> None:
    proto, fed = microsoft_model(operator, given, outputs, 17, **attributes)
    for ours, wanted in compared(proto, fed):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)
