"""``tvm_ext.transcribe``: waveforms, spectra, and an encoder ahead of a merged decoder."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from language_models import byte_tokenizer, causal_lm, encoder_decoder, greedy
from scipy.io import wavfile
from small_models import model, node, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError
from tvm_ext.generation.audio import log_mel_spectrum, mel_filters, waveform

TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(3200) / 16000)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("speech")
    for made, name in zip(encoder_decoder(), ("encoder.onnx", "decoder.onnx"), strict=True):
        onnx.save(made, path / name)
    byte_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def models(folder):
    """Encoder and decoder."""
    names = ("encoder.onnx", "decoder.onnx")
    return [tvm_ext.compile(folder / name, HOST, opt_level="O0") for name in names]


@pytest.fixture(scope="module")
def wanted(folder) -> list[int]:
    session = onnxruntime.InferenceSession(folder / "encoder.onnx")
    states = session.run(None, {"input_values": TONE[None]})[0]
    return greedy(folder / "decoder.onnx", [1], 10, encoder_hidden_states=states)


def test_tokens_are_those_of_onnx_runtime(models, wanted):
    encoder, decoder = models
    found = tvm_ext.transcribe(decoder, TONE, encoder=encoder, prompt=[1], max_new_tokens=10)
    assert list(found.tokens) == wanted


def test_a_file_is_read_and_the_decoder_begins_as_its_files_say(models, wanted, tmp_path):
    encoder, decoder = models
    wavfile.write(tmp_path / "tone.wav", 16000, TONE)
    config = {"decoder_start_token_id": 1, "eos_token_id": wanted[3]}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    pieces = []
    found = tvm_ext.transcribe(
        decoder,
        tmp_path / "tone.wav",
        encoder=encoder,
        tokenizer=byte_tokenizer(tmp_path),
        stream=pieces.append,
    )
    assert list(found.tokens) == wanted[: wanted.index(wanted[3]) + 1]
    assert "".join(map(str, pieces)) == found.text


def test_a_prompt_of_text_gets_no_special_tokens(models, folder):
    encoder, decoder = models
    found = tvm_ext.transcribe(
        decoder,
        TONE,
        encoder=encoder,
        prompt="</s>a",
        tokenizer=folder / "tokenizer.json",
        max_new_tokens=1,
    )
    assert found.prompt_tokens == (256, 64)


def test_without_a_start_it_is_refused(models):
    encoder, decoder = models
    with pytest.raises(InputError, match="nothing says with what the decoder begins"):
        tvm_ext.transcribe(decoder, TONE, encoder=encoder)
    with pytest.raises(InputError, match="there is no tokenizer"):
        tvm_ext.transcribe(decoder, TONE, encoder=encoder, prompt="a")


def test_a_decoder_without_its_encoder_is_refused(models):
    with pytest.raises(InputError, match="reads the states of an encoder"):
        tvm_ext.generate(models[1], [1])


@pytest.mark.extended
def test_an_encoder_of_text_is_no_encoder_of_sound(models):
    decoder = tvm_ext.compile(causal_lm(), HOST, opt_level="O0")
    with pytest.raises(InputError, match="expected one input, a waveform"):
        tvm_ext.transcribe(models[1], TONE, encoder=decoder, prompt=[1])
    with pytest.raises(InputError, match="expected input_ids and attention_mask"):
        tvm_ext.generate(models[1], [1], encoder=models[0])


@pytest.mark.extended
def test_an_encoder_of_text_reads_the_prompts():
    _, decoder = encoder_decoder()
    encoder = model(
        [
            node("Gather", ["table", "input_ids"], ["rows"]),
            node("Cast", ["attention_mask"], ["read"], to=1),
            node("Unsqueeze", ["read", "last"], ["column"]),
            node("Mul", ["rows", "column"], ["last_hidden_state"]),
        ],
        [value(n, ["B", "T"], onnx.TensorProto.INT64) for n in ("input_ids", "attention_mask")],
        [value("last_hidden_state", ["B", "T", 8])],
        table=np.random.default_rng(0).standard_normal((320, 8)).astype(np.float32),
        last=np.array([2]),
    )
    made = [tvm_ext.compile(one, HOST, opt_level="O0") for one in (decoder, encoder)]
    alone = [
        tvm_ext.generate(made[0], prompt, encoder=made[1], max_new_tokens=6)
        for prompt in ([5, 6], [9, 3])
    ]
    both = tvm_ext.generate(made[0], [[5, 6], [9, 3]], encoder=made[1], max_new_tokens=6)
    assert [one.tokens for one in both] == [one.tokens for one in alone]
    # The decoder has no mask for the encoder's states.
    with pytest.raises(InputError, match="prompts of several lengths"):
        tvm_ext.generate(made[0], [[5, 6], [9]], encoder=made[1])


def test_filters_are_triangles_of_area_one_that_meet():
    filters = mel_filters(80)
    assert filters.shape == (80, 201)
    assert (filters >= 0).all()
    peaks = filters.argmax(axis=1)
    assert (np.diff(peaks) >= 0).all()
    # 40 Hz apart; wide filters have many frequencies.
    assert filters[60:].sum(axis=1) * 40 == pytest.approx(np.ones(20), rel=0.02)


def test_the_spectrum_of_a_tone_is_largest_at_its_frequency():
    spectrum = log_mel_spectrum(TONE)
    assert (spectrum.shape, spectrum.dtype) == ((80, 3000), np.float32)
    frames = spectrum[:, 5:15]
    assert set(frames.argmax(axis=0)) == {mel_filters(80)[:, 11].argmax()}
    assert spectrum[:, 100:].max() == pytest.approx(spectrum.max() - 8 / 4)


@pytest.mark.parametrize(
    ("samples", "dtype"), [(TONE, "float32"), (TONE * 32767, "int16"), (TONE * 127 + 128, "uint8")]
)
def test_samples_of_all_types_mean_the_same(tmp_path, samples, dtype):
    wavfile.write(tmp_path / "tone.wav", 16000, samples.astype(dtype))
    assert waveform(tmp_path / "tone.wav", 0) == pytest.approx(TONE, abs=0.02)


def test_channels_are_averaged_and_rates_converted(tmp_path):
    # At 32,000 a second, on two channels.
    slow = np.sin(2 * np.pi * 100 * np.arange(6400) / 32000)
    wavfile.write(tmp_path / "two.wav", 32000, np.stack([slow, slow], 1).astype(np.float32))
    found = waveform(tmp_path / "two.wav", 0)
    wanted = np.sin(2 * np.pi * 100 * np.arange(3200) / 16000)
    assert found.shape == (3200,)
    assert found[100:-100] == pytest.approx(wanted[100:-100], abs=0.01)


@pytest.mark.parametrize("wrong", [np.zeros((2, 5), np.float32), np.zeros(5, int), np.zeros(0)])
def test_what_is_no_waveform_is_refused(wrong):
    with pytest.raises(InputError, match="the waveform is"):
        waveform(wrong, 16000)


def test_files_that_are_no_sound_are_refused(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"nothing")
    for name in ("a.wav", "none.wav"):
        with pytest.raises(InputError, match="cannot be read as sound"):
            waveform(tmp_path / name, 0)


def test_a_recording_that_is_too_long_is_refused():
    with pytest.raises(InputError, match=r"lasts 31\.0 s"):
        log_mel_spectrum(np.zeros(31 * 16000, np.float32))
