"""Quantised models for AArch64: which instructions multiply them."""

import re

import numpy as np
import pytest
from emulated_arm import arm
from onnx import ModelProto, helper
from random_numbers import RANDOM
from small_models import model, value
from thoroughness import one_in

import tvm_ext
from tvm_ext.compiler import build

node = helper.make_node


def quantised_convolution(dtype: str) -> ModelProto:
    stored = {
        "s": np.float32(2**-6),
        "z": np.array(3, dtype),
        "ws": np.float32(2**-7),
        "w": RANDOM.integers(-128, 128, (24, 16, 3, 3)).astype("int8"),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "ws"], ["v"]),
        node("Conv", ["d", "v"], ["y"], pads=[1] * 4),
    ]
    return model(nodes, [value("x", [1, 16, 9, 8])], [value("y", None)], 21, **stored)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", one_in(2, ["uint8", "int8"]))
@pytest.mark.parametrize(
    ("features", "names"),
    [
        (("dotprod",), {"uint8": "sdot", "int8": "sdot"}),
        (("i8mm", "dotprod"), {"uint8": "usmmla", "int8": "smmla"}),
        ((), {"uint8": "fmla", "int8": "fmla"}),
    ],
    ids=["dotprod", "i8mm", "neon"],
)
def test_quantised_convolutions_use_the_instruction(monkeypatch, dtype, features, names) -> None:
    codes: list[str] = []
    own = build._executable

    def watched(mod, target):
        made = own(mod, target)
        codes.append(str(made.mod.imports[0].inspect_source("s")))
        return made

    monkeypatch.setattr(build, "_executable", watched)
    compiled = tvm_ext.compile(quantised_convolution(dtype), arm(*features))
    schedules = [kernel.schedule for kernel in compiled.report.kernels]
    assert ("dot product tile" in schedules) == bool(features)
    found = re.findall(r"^\s+(fmla|\w+dot|\w*mmla)\s+v", "".join(codes), re.M)
    assert set(found) - {"fmla"} == {names[dtype]} - {"fmla"}
    assert names[dtype] in found
