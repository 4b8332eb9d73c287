"""Mixtures of experts of com.microsoft, compared with ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import pytest
from microsoft_models import bytes_of, compared, microsoft_model
from one_model import in_one_model
from small_models import rand

from tvm_ext import compile
from tvm_ext.errors import UnsupportedOperatorError

FLOAT = onnx.TensorProto.FLOAT
TOKENS, WIDTH, INNER, EXPERTS = 5, 48, 64, 6


def named(arrays: dict[str, Any]) -> dict[str, Any]:
    """With a name of underlines for each input that is left out."""
    missing = iter("_" * count for count in range(1, 20))
    return {name if a is not None else next(missing): a for name, a in arrays.items()}


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("attributes", "bias", "sizes"),
    [
        ({"k": 2}, True, (TOKENS,)),
        ({"k": 2, "normalize_routing_weights": 1}, False, (1, TOKENS)),
        ({"k": 1, "activation_type": "gelu"}, True, (TOKENS,)),
        ({"k": 2, "activation_type": "silu"}, True, (TOKENS,)),
        ({"k": 6, "activation_type": "identity"}, True, (TOKENS,)),
        ({"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1}, False, (TOKENS,)),
        (
            {
                "k": 4,
                "activation_type": "swiglu",
                "swiglu_fusion": 1,
                "activation_alpha": 1.7,
                "activation_beta": 1.0,
                "swiglu_limit": 1.0,
                "normalize_routing_weights": 1,
            },
            True,
            (TOKENS,),
        ),
    ],
)
def test_experts_of_floats(attributes: dict, bias: bool, sizes: tuple[int, ...]) -> None:
    outputs = INNER * (1 + attributes.get("swiglu_fusion", 0))
    given = named(
        {
            "x": rand(*sizes, WIDTH),
            "xr": rand(TOKENS, EXPERTS),
            "w1": rand(EXPERTS, outputs, WIDTH) / 6,
            "b1": rand(EXPERTS, outputs) if bias else None,
            "w2": rand(EXPERTS, WIDTH, INNER) / 8,
            "b2": rand(EXPERTS, WIDTH) if bias else None,
        }
    )
    proto, fed = microsoft_model("MoE", given, {"y": FLOAT}, 17, **attributes)
    for ours, wanted in compared(proto, fed):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("bits", "block", "zeros", "mixing"),
    [
        (4, 0, False, False),
        (4, 16, False, True),
        (4, 16, True, False),
        (8, 0, False, False),
        (2, 16, False, False),
        # The last block of each row is shorter.
        (4, 32, False, False),
    ],
)
def test_experts_of_few_bits(bits: int, block: int, zeros: bool, mixing: bool) -> None:
    """Scales of rows and of blocks; ONNX Runtime rounds the tokens to bytes for 8 bits."""
    parts, outputs = 8 // bits, 2 * INNER

    def scales(rows: int, width: int) -> np.ndarray:
        sizes = (EXPERTS, rows, -(-width // block)) if block else (EXPERTS, rows)
        return np.abs(rand(*sizes)) / (20 if bits == 4 else 300) + np.float32(1e-3)

    def points(rows: int, width: int) -> np.ndarray | None:
        return bytes_of(EXPERTS, rows, -(-width // block // parts)) if zeros else None

    given = named(
        {
            "x": rand(TOKENS, WIDTH),
            "xr": rand(TOKENS, EXPERTS),
            "w1": bytes_of(EXPERTS, outputs, WIDTH // parts),
            "s1": scales(outputs, WIDTH),
            "b1": rand(EXPERTS, outputs),
            "w2": bytes_of(EXPERTS, WIDTH, INNER // parts),
            "s2": scales(WIDTH, INNER),
            "b2": rand(EXPERTS, WIDTH),
            **dict.fromkeys(("w3", "s3", "b3")),
            "z1": points(outputs, WIDTH),
            "z2": points(WIDTH, INNER),
            "z3": None,
            "xm": np.abs(rand(TOKENS, EXPERTS)) if mixing else None,
        }
    )
    proto, fed = microsoft_model(
        "QMoE",
        given,
        {"y": FLOAT},
        17,
        k=2,
        activation_type="swiglu",
        swiglu_fusion=1,
        expert_weight_bits=bits,
        **({"block_size": block} if block else {}),
    )
    for ours, wanted in compared(proto, fed):
        np.testing.assert_allclose(ours, wanted, rtol=2e-2, atol=2e-2 * np.abs(wanted).max())


def test_other_numbers_than_integers_are_refused() -> None:
    given = {
        "x": rand(TOKENS, WIDTH),
        "xr": rand(TOKENS, EXPERTS),
        "w1": bytes_of(EXPERTS, INNER, WIDTH // 2),
        "s1": rand(EXPERTS, INNER, 1),
        "_": None,
        "w2": bytes_of(EXPERTS, WIDTH, INNER // 2),
        "s2": rand(EXPERTS, WIDTH, 2),
    }
    proto, _ = microsoft_model("QMoE", given, {"y": FLOAT}, 17, quant_type="fp4")
    with pytest.raises(UnsupportedOperatorError, match="quant_type fp4"):
        compile(proto)
