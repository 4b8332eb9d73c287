"""torchaudio: acoustic models and separators."""

from collections.abc import Callable
from typing import Any

from .entry import Entry, Input, Sizes, floats

_FRAMES = ({"batch": 2, "frames": 24}, {"batch": 1, "frames": 40})
_SAMPLES = ({"batch": 2, "samples": 1600}, {"batch": 1, "samples": 2400})
_LENGTHS = Input("int64", ("batch",), "value", 24)


def _models() -> Any:
    from torchaudio_without_library import torchaudio

    return torchaudio.models


def _conformer() -> Any:
    return _models().Conformer(
        input_dim=16, num_heads=2, ffn_dim=32, num_layers=2, depthwise_conv_kernel_size=5
    )


def _emformer() -> Any:
    return _models().Emformer(
        input_dim=16,
        num_heads=2,
        ffn_dim=32,
        num_layers=2,
        segment_length=4,
        right_context_length=2,
    )


def _conv_tasnet() -> Any:
    return _models().ConvTasNet(
        num_sources=2,
        enc_num_feats=16,
        msk_num_feats=8,
        msk_num_hidden_feats=16,
        msk_num_layers=2,
        msk_num_stacks=2,
    )


def _wav2letter() -> Any:
    return _models().Wav2Letter(num_classes=10, input_type="waveform", num_features=1)


def _deep_speech() -> Any:
    return _models().DeepSpeech(n_feature=16, n_hidden=16, n_class=10)


def _wav2vec2() -> Any:
    return _models().wav2vec2_model(
        extractor_mode="group_norm",
        extractor_conv_layer_config=[(16, 10, 5), (16, 8, 4)],
        extractor_conv_bias=False,
        encoder_embed_dim=32,
        encoder_projection_dropout=0.0,
        encoder_pos_conv_kernel=8,
        encoder_pos_conv_groups=2,
        encoder_num_layers=2,
        encoder_num_heads=2,
        encoder_attention_dropout=0.0,
        encoder_ff_interm_features=48,
        encoder_ff_interm_dropout=0.0,
        encoder_dropout=0.0,
        encoder_layer_norm_first=False,
        encoder_layer_drop=0.0,
        aux_num_out=10,
    )


def _wave_rnn() -> Any:
    return _models().WaveRNN(
        upsample_scales=[2, 2],
        n_classes=8,
        hop_length=4,
        n_res_block=1,
        n_rnn=16,
        n_fc=16,
        n_freq=8,
        n_hidden=8,
        n_output=8,
    )


def _mel_spectrogram() -> Any:
    from torchaudio_without_library import torchaudio

    return torchaudio.transforms.MelSpectrogram(n_fft=64, n_mels=8)


def _entry(
    name: str, build: Callable[[], Any], inputs: dict[str, Input], sizes: tuple[Sizes, ...]
) -> Entry:
    exporters = ("torchscript", "dynamo")
    return Entry(f"torchaudio {name}", "torchaudio", exporters, build, inputs, sizes)


ENTRIES = (
    _entry(
        "Conformer",
        _conformer,
        {"frames": floats("batch", "frames", 16), "lengths": _LENGTHS},
        _FRAMES,
    ),
    _entry(
        "Emformer",
        _emformer,
        {
            "frames": floats("batch", "frames", 16),
            "lengths": Input("int64", ("batch",), "value", 20),
        },
        ({"batch": 2, "frames": 26}, {"batch": 1, "frames": 42}),
    ),
    _entry("ConvTasNet", _conv_tasnet, {"wave": floats("batch", 1, "samples")}, _SAMPLES),
    _entry(
        "Wav2Letter",
        _wav2letter,
        {"wave": floats("batch", 1, "samples")},
        ({"batch": 2, "samples": 8000}, {"batch": 1, "samples": 9600}),
    ),
    _entry("DeepSpeech", _deep_speech, {"frames": floats("batch", 1, "frames", 16)}, _FRAMES),
    _entry("Wav2Vec2", _wav2vec2, {"wave": floats("batch", "samples")}, _SAMPLES),
    _entry(
        "WaveRNN",
        _wave_rnn,
        {"wave": floats("batch", 1, 40), "spectrogram": floats("batch", 1, 8, 14)},
        ({"batch": 2}, {"batch": 1}),
    ),
    _entry("MelSpectrogram", _mel_spectrogram, {"wave": floats("batch", "samples")}, _SAMPLES),
)
