"""What config.json and generation_config.json beside a model say."""

import json

from tvm_ext.generation.model_files import ModelFiles


def beside(tmp_path, generation=None, config=None) -> ModelFiles:
    for name, values in (("generation_config.json", generation), ("config.json", config)):
        if values is not None:
            (tmp_path / name).write_text(json.dumps(values))
    return ModelFiles.beside([tmp_path / "tokenizer.json"])


def test_nothing_is_said_without_files(tmp_path):
    assert beside(tmp_path) == ModelFiles()


def test_generation_config_comes_first(tmp_path):
    found = beside(
        tmp_path,
        {"eos_token_id": [2, 7]},
        {"eos_token_id": 9, "max_position_embeddings": 512},
    )
    assert found == ModelFiles(end_tokens=(2, 7), context=512)


def test_the_folder_above_one_named_onnx_is_looked_at(tmp_path):
    beside(tmp_path, {"eos_token_id": 2})
    (tmp_path / "onnx").mkdir()
    assert ModelFiles.beside([tmp_path / "onnx" / "model.onnx"]).end_tokens == (2,)


def test_a_decoder_begins_with_its_start_token_and_those_that_are_forced(tmp_path):
    values = {"decoder_start_token_id": 50, "forced_decoder_ids": [[1, 59], [2, 63]]}
    assert beside(tmp_path, values).start_tokens == (50, 59, 63)
    values["forced_decoder_ids"] = [[1, None], [2, 63]]
    assert beside(tmp_path, values).start_tokens == (50,)


def test_suppressed_tokens_of_a_speech_model(tmp_path):
    found = beside(tmp_path, {"suppress_tokens": [1, 2], "begin_suppress_tokens": [220]})
    assert (found.suppressed, found.suppressed_first) == ((1, 2), (220,))


def test_files_of_something_else_say_nothing(tmp_path):
    (tmp_path / "config.json").write_text("no JSON")
    (tmp_path / "generation_config.json").write_text('["a list"]')
    assert ModelFiles.beside([tmp_path / "model.onnx"]) == ModelFiles()
    assert beside(tmp_path, {"eos_token_id": "</s>"}, {"n_positions": True}) == ModelFiles()
