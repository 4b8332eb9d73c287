"""The attention that is measured gives the numbers of ONNX Runtime and is one kernel of ours."""

import attention
import numpy as np
import onnx
import pytest
from peers import Job, OnnxRuntime
from unoptimised import HOST

import tvm_ext


@pytest.mark.extended
@pytest.mark.parametrize("is_causal", [False, True])
def test_one_kernel_and_its_numbers(is_causal: bool, tmp_path) -> None:
    path = tmp_path / "attention.onnx"
    onnx.save(attention.attention_model(3, 16, 20, is_causal=is_causal), path)
    random = np.random.default_rng(0)
    inputs = {
        name: random.standard_normal((1, 3, 20, 16), dtype=np.float32)
        for name in ("query", "key", "value")
    }
    (wanted,) = OnnxRuntime().prepare(Job(path, inputs, 1, is_kernel=True)).outputs()
    compiled = tvm_ext.compile(path, HOST)
    assert [one.name for one in compiled.report.kernels] == ["attention"]
    np.testing.assert_allclose(compiled.run(inputs)["taken"], wanted, rtol=1e-4, atol=1e-5)
