"""transformers: speech, from samples or spectrograms."""

from collections.abc import Mapping
from typing import Any

from .entry import floats, integers
from .tiny_transformers import entry

_WAVE = {"input_values": floats("batch", "samples")}
_WAVE_SIZES = ({"batch": 2, "samples": 1600}, {"batch": 1, "samples": 2050})
_WAV2VEC2 = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 8, 4),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 32,
}
FROM_SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "Wav2Vec2ForCTC": _WAV2VEC2,
    "Wav2Vec2ForSequenceClassification": _WAV2VEC2,
    "HubertModel": _WAV2VEC2,
    "WavLMModel": _WAV2VEC2,
    "UniSpeechSatModel": _WAV2VEC2,
    "SEWModel": {**_WAV2VEC2, "squeeze_factor": 2},
    "Data2VecAudioModel": {**_WAV2VEC2, "conv_pos_kernel_size": 5},
    "Wav2Vec2ConformerModel": {**_WAV2VEC2, "position_embeddings_type": "rotary"},
}
WHISPER = {
    "vocab_size": 99,
    "num_mel_bins": 20,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_source_positions": 30,
    "max_target_positions": 40,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}

ENTRIES = (
    *(entry(model, options, _WAVE, _WAVE_SIZES) for model, options in FROM_SAMPLES.items()),
    entry(
        "WhisperForConditionalGeneration",
        WHISPER,
        {
            "input_features": floats("batch", 20, 60),
            "decoder_input_ids": integers("batch", "target", low=3, high=99),
        },
        ({"batch": 2, "target": 5}, {"batch": 1, "target": 3}),
    ),
    entry(
        "MoonshineModel",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 48,
            "encoder_num_hidden_layers": 1,
            "decoder_num_hidden_layers": 1,
            "encoder_num_attention_heads": 2,
            "decoder_num_attention_heads": 2,
        },
        {
            "input_values": floats("batch", "samples"),
            "decoder_input_ids": integers("batch", "target", low=3, high=99),
        },
        (
            {"batch": 2, "samples": 4000, "target": 5},
            {"batch": 1, "samples": 5000, "target": 3},
        ),
    ),
    entry(
        "Speech2TextForConditionalGeneration",
        {
            **{key: value for key, value in WHISPER.items() if "positions" not in key},
            "input_feat_per_channel": 20,
            "max_source_positions": 100,
            "max_target_positions": 40,
            "conv_channels": 32,
        },
        {
            "input_features": floats("batch", "frames", 20),
            "decoder_input_ids": integers("batch", "target", low=3, high=99),
        },
        (
            {"batch": 2, "frames": 32, "target": 5},
            {"batch": 1, "frames": 40, "target": 3},
        ),
    ),
    entry(
        "ASTModel",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "max_length": 64,
            "num_mel_bins": 32,
        },
        {"input_values": floats("batch", 64, 32)},
        ({"batch": 2}, {"batch": 1}),
    ),
    entry(
        "VitsModel",
        {
            "vocab_size": 38,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 48,
            "flow_size": 32,
            "spectrogram_bins": 33,
            "upsample_initial_channel": 32,
            "wavenet_dilation_rate": 1,
            "noise_scale": 0.0,
            "noise_scale_duration": 0.0,
            "use_stochastic_duration_prediction": False,
        },
        {"input_ids": integers("batch", "length", low=1, high=38)},
        ({"batch": 1, "length": 12}, {"batch": 1, "length": 9}),
    ),
    entry(
        "EncodecModel",
        {
            "num_filters": 8,
            "hidden_size": 16,
            "codebook_dim": 16,
            "codebook_size": 32,
            "upsampling_ratios": [4, 2],
            "num_lstm_layers": 1,
        },
        {"input_values": floats("batch", 1, "samples")},
        ({"batch": 2, "samples": 800}, {"batch": 1, "samples": 640}),
    ),
)
