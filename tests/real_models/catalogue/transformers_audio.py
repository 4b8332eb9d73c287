"""transformers: audio codecs, vocoders, spectrogram encoders and speech decoders."""

from typing import Any

from .entry import Entry, Sizes, floats, integers, mask
from .tiny_transformers import entry
from .transformers_speech import WHISPER

_SAMPLES = ({"batch": 2, "samples": 640}, {"batch": 1, "samples": 960})
_FRAMES = ({"batch": 2, "frames": 24}, {"batch": 1, "frames": 16})
_TOKENS = ({"batch": 2, "length": 10}, {"batch": 1, "length": 7})
_CLAP_AUDIO = {
    **{"num_mel_bins": 16, "spec_size": 64, "patch_size": 4, "patch_stride": [4, 4]},
    **{"num_classes": 4, "hidden_size": 32, "depths": [1, 1], "num_attention_heads": [2, 2]},
    **{"patch_embeds_hidden_size": 16, "window_size": 4, "projection_dim": 16},
    **{"enable_fusion": False, "num_hidden_layers": 2},
}
_SPEECH_T5 = {
    **{"vocab_size": 40, "hidden_size": 32, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 48},
    **{"decoder_ffn_dim": 48, "num_mel_bins": 8, "speech_decoder_prenet_units": 16},
    **{"speech_decoder_postnet_units": 16, "speaker_embedding_dim": 8},
}


def _codec(model: str, options: dict[str, Any], sizes: tuple[Sizes, ...] = _SAMPLES) -> Entry:
    return entry(model, options, {"input_values": floats("batch", 1, "samples")}, sizes)


ENTRIES = (
    _codec(
        "DacModel",
        {
            **{"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32},
            **{"upsampling_ratios": [4, 2], "n_codebooks": 3, "codebook_size": 16},
            "codebook_dim": 4,
        },
    ),
    _codec(
        "MimiModel",
        {
            **{
                "hidden_size": 32,
                "num_filters": 8,
                "upsampling_ratios": [4, 2],
                "codebook_size": 16,
            },
            **{"num_quantizers": 4, "num_semantic_quantizers": 1, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16},
            **{"intermediate_size": 48, "vector_quantization_hidden_dimension": 16},
            **{"codebook_dim": 16, "frame_rate": 50, "sampling_rate": 800, "sliding_window": 8},
            "upsample_groups": 32,
        },
    ),
    entry(
        "SpeechT5HifiGan",
        {
            **{"model_in_dim": 8, "upsample_initial_channel": 16, "upsample_rates": [2, 2]},
            **{"upsample_kernel_sizes": [4, 4], "resblock_kernel_sizes": [3]},
            "resblock_dilation_sizes": [[1, 3]],
        },
        {"spectrogram": floats("batch", "frames", 8)},
        _FRAMES,
    ),
    entry(
        "SpeechT5ForSpeechToText",
        {**_SPEECH_T5, "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8)},
        {
            "input_values": floats("batch", "samples"),
            "decoder_input_ids": integers("batch", "target", low=3, high=40),
        },
        ({"batch": 2, "samples": 640, "target": 5}, {"batch": 1, "samples": 960, "target": 3}),
    ),
    entry(
        "ClapAudioModelWithProjection",
        _CLAP_AUDIO,
        {"input_features": floats("batch", 1, 60, 16)},
        ({"batch": 2}, {"batch": 1}),
    ),
    entry(
        "WhisperForAudioClassification",
        {**WHISPER, "num_labels": 4},
        {"input_features": floats("batch", 20, 60)},
        ({"batch": 2}, {"batch": 1}),
    ),
    entry(
        "Wav2Vec2BertModel",
        {
            **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"intermediate_size": 48, "feature_projection_input_dim": 16},
            **{"position_embeddings_type": "relative_key", "vocab_size": 32},
        },
        {
            "input_features": floats("batch", "frames", 16),
            "attention_mask": mask("batch", "frames"),
        },
        _FRAMES,
    ),
    entry(
        "SEWDModel",
        {
            **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"intermediate_size": 48, "conv_dim": (16, 16), "conv_stride": (5, 4)},
            **{"conv_kernel": (10, 8), "num_conv_pos_embeddings": 16, "squeeze_factor": 2},
            **{"num_conv_pos_embedding_groups": 2, "max_position_embeddings": 64},
            "position_buckets": 8,
        },
        {"input_values": floats("batch", "samples")},
        _SAMPLES,
    ),
    entry(
        "FastSpeech2ConformerModel",
        {
            **{"hidden_size": 32, "vocab_size": 40, "num_mel_bins": 8, "encoder_layers": 1},
            **{"decoder_layers": 1, "encoder_num_attention_heads": 2, "encoder_linear_units": 32},
            **{"decoder_num_attention_heads": 2, "decoder_linear_units": 32},
            **{"speech_decoder_postnet_units": 16, "speech_decoder_postnet_layers": 2},
            **{"duration_predictor_channels": 16, "energy_predictor_channels": 16},
            "pitch_predictor_channels": 16,
        },
        {"input_ids": integers("batch", "length", low=1, high=40)},
        ({"batch": 1, "length": 10}, {"batch": 1, "length": 7}),
    ),
    entry(
        "MusicgenForCausalLM",
        {
            **{"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 48},
            **{"num_attention_heads": 2, "num_codebooks": 2, "pad_token_id": 0},
        },
        {"input_ids": integers("batch*2", "length", low=1, high=32)},
        _TOKENS,
    ),
)
