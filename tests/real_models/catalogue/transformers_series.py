"""transformers: time series and decisions."""

from .entry import floats, integers, mask
from .tiny_transformers import entry

_BATCH = ({"batch": 2}, {"batch": 1})
_FORECAST = {
    **{"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2], "d_model": 16},
    **{"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24},
    **{"num_time_features": 2, "scaling": "mean"},
}
_PAST = {
    "past_values": floats("batch", 14),
    "past_time_features": floats("batch", 14, 2),
    "past_observed_mask": floats("batch", 14, low=1, high=1.5),
    "future_values": floats("batch", 4),
    "future_time_features": floats("batch", 4, 2),
}
_PATCHES = {"context_length": 16, "patch_length": 4, "d_model": 16, "num_input_channels": 3}

ENTRIES = (
    *(
        entry(model, _FORECAST, _PAST, _BATCH)
        for model in ("TimeSeriesTransformerModel", "InformerModel", "AutoformerModel")
    ),
    entry(
        "PatchTSTForPrediction",
        {
            **{**_PATCHES, "patch_stride": 2, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"ffn_dim": 24, "prediction_length": 4},
        },
        {"past_values": floats("batch", 16, 3)},
        _BATCH,
    ),
    entry(
        "PatchTSMixerForPrediction",
        {**_PATCHES, "num_layers": 1, "prediction_length": 4, "mode": "mix_channel"},
        {"past_values": floats("batch", 16, 3)},
        _BATCH,
    ),
    entry(
        "DecisionTransformerModel",
        {
            **{"state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 1, "n_head": 2},
            **{"max_ep_len": 30, "n_positions": 64},
        },
        {
            "states": floats("batch", "steps", 5),
            "actions": floats("batch", "steps", 3),
            "returns_to_go": floats("batch", "steps", 1),
            "timesteps": integers("batch", "steps", high=30),
            "attention_mask": mask("batch", "steps"),
        },
        ({"batch": 2, "steps": 6}, {"batch": 1, "steps": 4}),
    ),
)
