"""``tvm_ext.generate``: the tokens of ONNX Runtime, when a text ends, and what is refused."""

import json

import numpy as np
import onnx
import pytest
from language_models import byte_tokenizer, causal_lm, greedy
from small_models import mlp
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError
from tvm_ext.generation.generate import TextPiece

PROMPT = [1, 2, 3]


def compiled(made: onnx.ModelProto) -> tvm_ext.CompiledModel:
    return tvm_ext.compile(made, HOST, opt_level="O0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder as a file, and a tokenizer of a token for each byte."""
    path = tmp_path_factory.mktemp("decoder")
    onnx.save(causal_lm(), path / "model.onnx")
    byte_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def decoder(folder) -> tvm_ext.CompiledModel:
    return compiled(onnx.load(folder / "model.onnx"))


@pytest.fixture(scope="module")
def wanted(folder) -> list[int]:
    return greedy(folder / "model.onnx", PROMPT, 20)


def test_greedy_tokens_are_those_of_onnx_runtime(decoder, wanted):
    found = tvm_ext.generate(decoder, PROMPT, max_new_tokens=20)
    assert list(found.tokens) == wanted
    assert (found.finish_reason, found.text, found.prompt_tokens) == ("length", "", (1, 2, 3))


@pytest.mark.slow
def test_they_are_in_a_program_for_users_that_keeps_the_state_in_place(folder, wanted):
    found = tvm_ext.generate(folder / "model.onnx", PROMPT, max_new_tokens=20)
    assert list(found.tokens) == wanted


def test_prompts_of_several_lengths_share_a_batch(decoder, folder):
    prompts = [PROMPT, [7], [9, 8, 3, 4, 5], [7]]
    found = tvm_ext.generate(decoder, prompts, max_new_tokens=12)
    for text, prompt in zip(found, prompts, strict=True):
        assert list(text.tokens) == greedy(folder / "model.onnx", prompt, 12)
    assert found[0].speed.runs == 11


@pytest.mark.slow
def test_prompts_that_cannot_be_padded_run_by_their_lengths(tmp_path):
    made = causal_lm(has_mask=False, has_positions=False)
    onnx.save(made, tmp_path / "model.onnx")
    prompts = [PROMPT, [7], [9, 8, 3], [8]]
    found = tvm_ext.generate(compiled(made), prompts, max_new_tokens=12)
    for text, prompt in zip(found, prompts, strict=True):
        assert list(text.tokens) == greedy(tmp_path / "model.onnx", prompt, 12)
    assert found[0].speed.runs == 2 * 11


def test_a_text_that_ended_waits_for_the_others(decoder, wanted):
    first, second = tvm_ext.generate(
        decoder, [PROMPT, [7]], max_new_tokens=20, end_tokens=[wanted[4]]
    )
    assert list(first.tokens) == wanted[: wanted.index(wanted[4]) + 1]
    assert first.finish_reason == "end token"
    assert len(second.tokens) == 20 or second.finish_reason == "end token"


def test_text_and_its_pieces(decoder, folder):
    pieces: list[TextPiece] = []
    found = tvm_ext.generate(
        decoder,
        "Once",
        tokenizer=folder / "tokenizer.json",
        max_new_tokens=20,
        stream=pieces.append,
    )
    assert "".join(map(str, pieces)) == found.text == str(found)
    assert {piece.number for piece in pieces} <= {0}


def test_an_iterator_can_be_left_early(decoder, wanted):
    made = tvm_ext.generate(decoder, PROMPT, max_new_tokens=20, stream=True)
    (before,) = made.results
    assert (before.tokens, before.finish_reason) == ((), "interrupted")
    assert list(made) == []
    assert list(made.results[0].tokens) == wanted


def test_an_interrupt_leaves_what_was_made(decoder, folder):
    made = tvm_ext.generate(
        decoder, "Once", tokenizer=folder / "tokenizer.json", max_new_tokens=50, stream=True
    )
    first = next(made)
    (found,) = made.results
    assert found.text.startswith(first.text)
    assert 0 < len(found.tokens) < 50
    assert found.finish_reason == "interrupted"


def test_a_stop_string_ends_the_text(decoder, folder):
    options = {"tokenizer": folder / "tokenizer.json", "max_new_tokens": 30}
    whole = tvm_ext.generate(decoder, "Once", **options).text
    stop = next(character for character in whole if character.isprintable())
    found = tvm_ext.generate(decoder, "Once", stop=stop, **options)
    assert found.text == whole.partition(stop)[0]
    assert found.finish_reason == "stop string"


def test_drawn_texts_follow_their_seed(decoder):
    def tokens(seed: int) -> tuple[int, ...]:
        return tvm_ext.generate(decoder, PROMPT, temperature=2.0, top_k=40, seed=seed).tokens

    assert tokens(1) == tokens(1) != tokens(2)


def test_a_repetition_penalty_gives_other_tokens(decoder, wanted):
    found = tvm_ext.generate(decoder, PROMPT, max_new_tokens=20, repetition_penalty=50.0)
    assert len(set(found.tokens)) > len(set(wanted))


def test_a_full_session_ends_the_text(decoder, wanted):
    found = tvm_ext.generate(decoder, PROMPT, max_new_tokens=20, capacity=8)
    assert (list(found.tokens), found.finish_reason) == (wanted[:6], "context full")


def test_the_context_of_the_model_ends_the_text(decoder, folder, tmp_path):
    path = byte_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 8}))
    found = tvm_ext.generate(decoder, "Onc", tokenizer=path, max_new_tokens=20)
    assert (len(found.tokens), found.finish_reason) == (6, "context full")
    with pytest.raises(InputError, match=r"prompt has 9 tokens, and the model's context holds 8"):
        tvm_ext.generate(decoder, "Once upon", tokenizer=path)


def test_end_tokens_by_spelling_and_by_the_files(decoder, folder, tmp_path, wanted):
    path = byte_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": wanted[2]}))
    found = tvm_ext.generate(decoder, PROMPT, tokenizer=path, max_new_tokens=20)
    assert (list(found.tokens), found.finish_reason) == (wanted[:3], "end token")
    for ends in (["</s>"], []):
        found = tvm_ext.generate(
            decoder, PROMPT, tokenizer=path, max_new_tokens=20, end_tokens=ends
        )
        assert list(found.tokens) == wanted


def test_what_it_took(decoder):
    first, _ = tvm_ext.generate(decoder, [PROMPT, [7, 8]], max_new_tokens=5)
    speed = first.speed
    assert (speed.prompt_tokens, speed.new_tokens, speed.runs) == (5, 8, 4)
    # A token of a row is a key and a value of two heads of four floats.
    assert speed.state_bytes == 2 * 2 * 4 * 4 * 2 * (4 + 5 + 6 + 7)
    memory = decoder.report.memory
    assert speed.bytes_per_run == memory.weights_read_bytes + speed.state_bytes / 4
    # Of the tables of tokens and of positions a run reads rows.
    assert memory.weights_bytes - memory.weights_read_bytes >= (320 + 64) * 8 * 4
    shown = speed.to_dict(measured_gbs=2 * speed.read_gbs)
    assert shown["share_of_measured"] == pytest.approx(0.5)
    assert shown["tokens_per_second"] > 0


@pytest.mark.extended
def test_a_model_without_a_state_is_refused():
    with pytest.raises(InputError, match="has no state"):
        tvm_ext.generate(tvm_ext.compile(mlp(), HOST, opt_level="O0"), PROMPT)


@pytest.mark.extended
def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    small = compiled(causal_lm(vocabulary=100))
    with pytest.raises(InputError, match=r"tokens up to 256, and the model has logits for 100"):
        tvm_ext.generate(small, "Once", tokenizer=folder / "tokenizer.json")
    with pytest.raises(InputError, match=r"token 100; expected tokens from 0 to 99"):
        tvm_ext.generate(small, [5, 100])


@pytest.mark.extended
def test_a_model_without_logits_is_refused():
    made = causal_lm()
    kept = [output for output in made.graph.output if output.name != "logits"]
    del made.graph.output[:]
    made.graph.output.extend(kept)
    with pytest.raises(InputError, match="gives no logits"):
        tvm_ext.generate(compiled(made), PROMPT)


@pytest.mark.extended
def test_an_input_that_nobody_knows_is_refused():
    made = causal_lm()
    for name in ("position_ids", "attention_mask"):
        for one in made.graph.input:
            one.name = one.name.replace(name, "mystery")
        for step in made.graph.node:
            step.input[:] = [n.replace(name, "mystery") for n in step.input]
        with pytest.raises(InputError, match=r"'mystery.*not known from other decoders"):
            tvm_ext.generate(compiled(made), PROMPT)
        made = causal_lm()


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        (list(range(9)), {"capacity": 8}, "prompt has 9 tokens, and the session holds 8"),
        (PROMPT, {"capacity": 1}, "capacity is 1"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (PROMPT, {"stop": ""}, "stop string is empty"),
        (PROMPT, {"end_tokens": ["</s>"]}, "there is no tokenizer"),
        (PROMPT, {"top_p": 2.0}, "top_p is 2.0"),
        ("text", {}, "there is no tokenizer"),
        ([], {}, "no prompt was given"),
        ([[]], {}, "has no tokens"),
        (PROMPT, {"encoder": "itself"}, "no input encoder_hidden_states"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(decoder, prompt, options, says):
    if options.get("encoder") == "itself":
        options = {"encoder": decoder}
    with pytest.raises(InputError, match=says):
        tvm_ext.generate(decoder, prompt, **options)


@pytest.mark.slow
def test_logits_of_float16_and_one_row_of_them():
    made = causal_lm()
    made.graph.node[-1].output[0] = "wide"
    made.graph.node.append(onnx.helper.make_node("Cast", ["wide"], ["logits"], to=10))
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    found = tvm_ext.generate(compiled(made), PROMPT, max_new_tokens=3)
    assert len(found.tokens) == 3
    assert np.isfinite(found.tokens).all()


@pytest.mark.slow
def test_a_model_whose_items_are_independent_keeps_its_state_in_one_piece():
    """Its batch could be cut into micro-batches, which a state in place cannot be."""
    made = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 17]>
    alphabet (int64[B, S] input_ids, float[B, P] past_0)
        => (float[B, S, 256] logits, float[B, T] present_0) {
        read = Cast<to = 1>(input_ids)
        present_0 = Concat<axis = 1>(past_0, read)
        logits = Gather(table, input_ids)
    }""")
    table = np.roll(np.eye(256, dtype=np.float32), 1, axis=1)
    made.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    found = tvm_ext.generate(tvm_ext.compile(made), [[7], [40]], max_new_tokens=3)
    assert [text.tokens for text in found] == [(8, 9, 10), (41, 42, 43)]
