"""``tvm-ext generate``: text on stdout, what it took on stderr, refusals in one line."""

import os
import pty
import re
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from commands import as_json, invoke, refused
from language_models import byte_tokenizer, causal_lm, encoder_decoder, greedy
from scipy.io import wavfile
from small_models import mlp

import tvm_ext
from tvm_ext.cli.generate import speed_lines
from tvm_ext.cli.output import without_controls
from tvm_ext.generation.generate import GeneratedText
from tvm_ext.generation.speed import GenerationSpeed

FAST = ("--opt-level", "O0", "--threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder, compiled and not, with its tokenizer."""
    path = tmp_path_factory.mktemp("generate")
    onnx.save(causal_lm(), path / "model.onnx")
    byte_tokenizer(path)
    tvm_ext.compile(path / "model.onnx", opt_level="O0", threads=1).save(path / "model.tvmx")
    return path


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch):
    """A known number: measuring takes a second."""
    monkeypatch.setattr("tvm_ext.generation.speed.measured_read_gbs", lambda *_: 10.0)


@pytest.mark.extended
def test_text_goes_to_stdout_and_what_it_took_to_stderr(folder):
    options = ("--tokenizer", folder / "tokenizer.json", "--prompt", "Once", "-n", "20")
    result = invoke("generate", folder / "model.tvmx", *options)
    assert result.exit_code == 0
    whole = tvm_ext.generate(
        folder / "model.tvmx", "Once", tokenizer=folder / "tokenizer.json", max_new_tokens=20
    )
    assert result.stdout == whole.text + "\n"
    lines = result.stderr.splitlines()
    assert [line.split()[0] for line in lines] == ["Prompt", "Generation", "Read"]
    assert re.search(r"4 tokens, [\d,]+ tokens a second", lines[0])
    assert re.search(r"20 tokens, [\d,]+ tokens a second, ended by length", lines[1])
    assert re.search(r"of weights, .* of state a run, [\d.]+ GB/s, .* % of the 10\.0", lines[2])


@pytest.mark.extended
def test_json_has_tokens_and_speed(folder):
    found = as_json(
        *("generate", folder / "model.onnx", "--prompt-tokens", "1,2,3", "-n", "9"), *FAST
    )
    (text,) = found["texts"]
    assert text["tokens"] == greedy(folder / "model.onnx", [1, 2, 3], 9)
    assert (text["finish_reason"], text["prompt_tokens"]) == ("length", [1, 2, 3])
    assert found["speed"]["measured_gb_per_second"] == 10.0
    assert found["speed"]["new_tokens"] == 8


@pytest.mark.extended
def test_several_prompts_are_numbered_and_tokens_printed_without_a_tokenizer(folder):
    result = invoke(
        *("generate", folder / "model.tvmx", "--prompt-tokens", "1,2,3"),
        *("--prompt-tokens", "7", "-n", "5"),
    )
    wanted = [greedy(folder / "model.onnx", prompt, 5) for prompt in ([1, 2, 3], [7])]
    assert result.stdout.splitlines() == [
        f"{number}: {','.join(map(str, tokens))}" for number, tokens in enumerate(wanted, 1)
    ]


def test_a_prompt_from_a_file_a_stop_string_and_an_end_token(folder, tmp_path):
    (tmp_path / "prompt.txt").write_text("Once")
    options = ("--tokenizer", folder / "tokenizer.json", "-n", "20")
    options = (folder / "model.tvmx", *options, "--prompt-file", tmp_path / "prompt.txt")
    (whole,) = as_json("generate", *options)["texts"]
    ended = str(whole["tokens"][3])
    (found,) = as_json("generate", *options, "--end-token", ended)["texts"]
    assert found["finish_reason"] == "end token"
    assert found["tokens"] == whole["tokens"][: whole["tokens"].index(int(ended)) + 1]
    stop = next(character for character in whole["text"] if character.isalnum())
    (found,) = as_json("generate", *options, "--stop", stop)["texts"]
    assert found["text"] == whole["text"].partition(stop)[0]
    (found,) = as_json("generate", *options, "--end-token", "none")["texts"]
    assert found == whole


@pytest.mark.slow
def test_a_recording_is_written_down(tmp_path):
    encoder, decoder = encoder_decoder()
    onnx.save(encoder, tmp_path / "encoder.onnx")
    onnx.save(decoder, tmp_path / "decoder.onnx")
    tone = np.sin(np.arange(3200) / 9).astype(np.float32) * 0.3
    wavfile.write(tmp_path / "tone.wav", 16000, tone)
    options = ("--encoder", tmp_path / "encoder.onnx", "--audio", tmp_path / "tone.wav")
    found = as_json(
        *("generate", tmp_path / "decoder.onnx", *options),
        *("--prompt-tokens", "1", "-n", "6", *FAST),
    )
    own = [tvm_ext.compile(one, opt_level="O0", threads=1) for one in (decoder, encoder)]
    wanted = tvm_ext.transcribe(own[0], tone, encoder=own[1], prompt=[1], max_new_tokens=6)
    assert found["texts"][0]["tokens"] == list(wanted.tokens)


def test_a_full_session_is_said(folder):
    result = invoke(
        *("generate", folder / "model.tvmx", "--prompt-tokens", "1,2,3", "--capacity", "8"),
    )
    assert (result.exit_code, result.stdout.count(",")) == (0, 5)
    assert "ended by a full context" in result.stderr
    assert "give a larger --capacity" in result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "no prompt was given"),
        (("--prompt", "Once"), "there is no tokenizer"),
        (("--prompt-tokens", "1,x"), "--prompt-tokens is '1,x'"),
        (("--prompt-file", "none.txt"), "none.txt cannot be read as text"),
        (("--prompt-tokens", "1", "--audio", "a.wav"), "--audio was given without --encoder"),
        (("--prompt-tokens", "1,2,3,4", "--capacity", "4"), "the session holds 4"),
        (("--prompt-tokens", "1", "--top-k", "3"), "top_k given with temperature 0"),
        (("--prompt-tokens", "1", "--opt-level", "O1"), "is compiled already"),
    ],
)
def test_what_cannot_be_done_is_refused(folder, options, says):
    assert says in refused("generate", folder / "model.tvmx", *options)


@pytest.mark.extended
def test_a_model_without_a_state_is_refused(tmp_path):
    onnx.save(mlp(), tmp_path / "mlp.onnx")
    line = refused("generate", tmp_path / "mlp.onnx", "--prompt-tokens", "1", *FAST)
    assert "mlp has no state" in line


def test_a_terminal_gets_no_escape_sequences():
    assert without_controls("a\x1b[31mb\tc\n é👨‍👩‍👧\x9b") == "a\ufffd[31mb\tc\n é👨‍👩‍👧\ufffd"


def test_what_was_not_measured_is_not_shown():
    speed = GenerationSpeed(weights_bytes=1 << 20, bytes_per_token=16)
    speed.add_prompts(3, 0.5)
    text = GeneratedText("a", (1,), "length", (2, 3, 4), speed)
    assert speed_lines(speed, 10.0, [text]) == [
        "Prompt      3 tokens, 6 tokens a second",
        "Generation  1 token, not measured, ended by length",
    ]


# A process that a script starts in the background ignores interrupts, and so do its children.
START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tvm_ext.cli.main import main
main()
"""


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_made(tmp_path):
    onnx.save(causal_lm(context=20_000), tmp_path / "model.onnx")
    tvm_ext.compile(tmp_path / "model.onnx", opt_level="O0", threads=1).save(tmp_path / "m.tvmx")
    options = ["--tokenizer", str(byte_tokenizer(tmp_path)), "--prompt", "Once", "-n", "19000"]
    # In a terminal of its own, where pieces come at once.
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", START, "generate", str(tmp_path / "m.tvmx"), *options],
        stdout=secondary,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(secondary)
    first = os.read(primary, 100)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    os.close(primary)
    assert first
    assert process.returncode == 130
    assert "ended by Ctrl-C" in errors
    assert "error" not in errors
