"""The tokens of two programs behind the same beginnings, and a graph without quantised products."""

import sys

import generate
import numpy as np
import onnx
import onnxruntime
import pytest
from generate_float import in_float32
from language_models import byte_tokenizer, causal_lm, encoder_decoder
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext


def run_main(monkeypatch, *arguments) -> None:
    monkeypatch.setattr(sys, "argv", ["generate.py", *map(str, arguments)])
    monkeypatch.setattr(generate, "_SETTLE_SECONDS", 0.0)
    generate.main()


@pytest.mark.slow
def test_tokens_and_speeds_of_a_small_model(monkeypatch, capsys, tmp_path):
    onnx.save(causal_lm(context=200), tmp_path / "model.onnx")
    tokenizer = byte_tokenizer(tmp_path)
    run_main(
        monkeypatch,
        *(tmp_path / "model.onnx", "--tokenizer", tokenizer, "--prompts", 2),
        *("--tokens", 12, "--threads", 1),
    )
    printed = capsys.readouterr().out
    assert "| 1 | 12 | 0 | 0 | held |\n| 2 | 12 | 0 | 0 | held |" in printed
    assert "1 threads: prompts" in printed


@pytest.mark.extended
def test_a_speech_model_hears_the_same_sound_in_both_programs(monkeypatch, capsys, tmp_path):
    for made, name in zip(encoder_decoder(), ("encoder.onnx", "decoder.onnx"), strict=True):
        onnx.save(made, tmp_path / name)
    run_main(
        monkeypatch,
        *(tmp_path / "decoder.onnx", "--encoder", tmp_path / "encoder.onnx", "--start", 1),
        *("--prompts", 1, "--tokens", 8, "--threads", 1, "--rounds", 0),
    )
    assert "| 1 | 8 | 0 |" in capsys.readouterr().out


@pytest.mark.slow
def test_other_tokens_are_counted_and_the_text_goes_on_behind_the_reference(tmp_path):
    made = causal_lm()
    reference = generate.Reference(generate._session(made.SerializeToString(), 1))
    wanted = list(reference.greedy([1, 2], 10))
    assert all(distance >= 0 for _, distance in wanted)
    compiled = tvm_ext.compile(made, HOST, opt_level="O0")
    assert generate.compare(compiled, [1, 2], wanted) == []
    wrong = [(token + (place == 3), 0.5) for place, (token, _) in enumerate(wanted)]
    found = generate.compare(compiled, [1, 2], wrong)
    assert found[0] == (3, 0.5)


def test_a_quantised_product_becomes_one_of_floats():
    weights = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    made = model(
        [
            node("DynamicQuantizeLinear", ["x"], ["x8", "x_scale", "x_zero"]),
            node("MatMulInteger", ["x8", "w", "x_zero", "w_zero"], ["product"]),
            node("Cast", ["product"], ["wide"], to=onnx.TensorProto.FLOAT),
            node("Mul", ["x_scale", "w_scale"], ["scales"]),
            node("Mul", ["wide", "scales"], ["y"]),
        ],
        [value("x", ["N", 4])],
        [value("y", ["N", 3])],
        w=weights,
        w_zero=np.int8(2),
        w_scale=np.float32(0.5),
    )
    changed = in_float32(made)
    assert [one.op_type for one in changed.graph.node] == ["MatMul"]
    x = rand(5, 4)
    (found,) = onnxruntime.InferenceSession(changed.SerializeToString()).run(None, {"x": x})
    assert found == pytest.approx(x @ ((weights.astype(np.float32) - 2) * 0.5), abs=1e-5)
    assert made.graph.node[0].op_type == "DynamicQuantizeLinear"


def test_the_sound_is_as_loud_as_speech_and_ends_in_time():
    heard = generate.sound(1.5, seed=0)
    assert (heard.shape, heard.dtype) == ((24000,), np.float32)
    assert 0.05 < np.abs(heard).max() < 2
    assert not np.array_equal(heard, generate.sound(1.5, seed=1))
