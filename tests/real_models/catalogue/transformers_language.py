"""transformers: encoders, decoders and both, over tokens."""

from collections.abc import Mapping
from typing import Any

from .entry import Entry, integers, mask
from .tiny_transformers import entry

SIZES = ({"batch": 2, "length": 10}, {"batch": 1, "length": 7})
TOKENS = {
    "input_ids": integers("batch", "length", low=3, high=99),
    "attention_mask": mask("batch", "length"),
}
BOTH_SIDES = {**TOKENS, "decoder_input_ids": integers("batch", "target", low=3, high=99)}
BOTH_SIZES = ({"batch": 2, "length": 10, "target": 5}, {"batch": 1, "length": 7, "target": 3})

_WIDTHS = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
_GROUPED = {**_WIDTHS, "num_key_value_heads": 1, "head_dim": 16}
_BART = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
_T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
_GPT2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}

# Class of the model, and its configuration.
ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "BertModel": _WIDTHS,
    "BertForTokenClassification": _WIDTHS,
    "RobertaModel": {**_WIDTHS, "pad_token_id": 1},
    "XLMRobertaForSequenceClassification": {**_WIDTHS, "pad_token_id": 1},
    "CamembertForQuestionAnswering": {**_WIDTHS, "pad_token_id": 1},
    "DistilBertForMaskedLM": {
        "vocab_size": 99,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 48,
    },
    "AlbertModel": {**_WIDTHS, "embedding_size": 16},
    "ElectraForPreTraining": {**_WIDTHS, "embedding_size": 16},
    "DebertaModel": {**_WIDTHS, "relative_attention": True, "pos_att_type": "c2p|p2c"},
    "DebertaV2Model": {
        **_WIDTHS,
        "relative_attention": True,
        "pos_att_type": "p2c|c2p",
        "position_buckets": 8,
    },
    "MPNetModel": _WIDTHS,
    "MobileBertModel": {**_WIDTHS, "embedding_size": 32, "intra_bottleneck_size": 32},
    "ConvBertModel": {**_WIDTHS, "embedding_size": 32},
    "SqueezeBertModel": {**_WIDTHS, "embedding_size": 32},
    "RoFormerModel": {**_WIDTHS, "embedding_size": 32},
    "ErnieModel": _WIDTHS,
    "FNetModel": {k: v for k, v in _WIDTHS.items() if k != "num_attention_heads"},
    "ModernBertModel": {**_WIDTHS, "attn_implementation": "eager", "pad_token_id": 0},
    "FunnelModel": {"vocab_size": 99, "block_sizes": [1, 1], "d_model": 32, "n_head": 2},
    "XLNetModel": {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
    "XLMModel": {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 2},
    "FlaubertModel": {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 2},
    "CanineModel": {k: v for k, v in _WIDTHS.items() if k != "vocab_size"},
    "LongformerModel": {**_WIDTHS, "attention_window": 4, "pad_token_id": 1},
    "BigBirdModel": {**_WIDTHS, "attention_type": "original_full"},
    "IBertModel": {**_WIDTHS, "pad_token_id": 1},
    "EsmModel": {**_WIDTHS, "pad_token_id": 1, "position_embedding_type": "rotary"},
}
DECODERS: Mapping[str, Mapping[str, Any]] = {
    "GPT2LMHeadModel": _GPT2,
    "GPTNeoForCausalLM": {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
    },
    "GPTNeoXForCausalLM": _WIDTHS,
    "GPTJForCausalLM": {**_GPT2, "rotary_dim": 8},
    "GPTBigCodeForCausalLM": _GPT2,
    "CodeGenForCausalLM": {**_GPT2, "n_head": 4, "rotary_dim": 4},
    "OPTForCausalLM": {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
    },
    "BloomForCausalLM": {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 2},
    "FalconForCausalLM": {**_WIDTHS, "alibi": False},
    "MptForCausalLM": {"vocab_size": 99, "d_model": 32, "n_layers": 2, "n_heads": 2},
    "LlamaForCausalLM": _GROUPED,
    "MistralForCausalLM": {**_GROUPED, "sliding_window": 4},
    "MixtralForCausalLM": {**_GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1},
    "Qwen2ForCausalLM": _GROUPED,
    "Qwen3ForCausalLM": _GROUPED,
    "GemmaForCausalLM": _GROUPED,
    "Gemma2ForCausalLM": {**_GROUPED, "sliding_window": 4},
    "PhiForCausalLM": _WIDTHS,
    "Phi3ForCausalLM": {**_WIDTHS, "num_key_value_heads": 1, "pad_token_id": 0},
    "StableLmForCausalLM": {**_WIDTHS, "num_key_value_heads": 1},
    "Starcoder2ForCausalLM": {**_WIDTHS, "num_key_value_heads": 1},
    "CohereForCausalLM": {**_WIDTHS, "num_key_value_heads": 1},
    "GraniteForCausalLM": {**_WIDTHS, "num_key_value_heads": 1},
    "OlmoForCausalLM": {**_WIDTHS, "num_key_value_heads": 1},
    "SmolLM3ForCausalLM": {**_WIDTHS, "num_key_value_heads": 1, "pad_token_id": 0},
    "MambaModel": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "RwkvModel": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2},
}
SEQUENCES: Mapping[str, Mapping[str, Any]] = {
    "BartForConditionalGeneration": _BART,
    "MarianMTModel": {**_BART, "pad_token_id": 1, "decoder_start_token_id": 1},
    "MBartForConditionalGeneration": _BART,
    "M2M100ForConditionalGeneration": _BART,
    "PegasusForConditionalGeneration": _BART,
    "BlenderbotForConditionalGeneration": _BART,
    "LEDForConditionalGeneration": {**_BART, "attention_window": 4},
    "T5ForConditionalGeneration": _T5,
    "MT5ForConditionalGeneration": {**_T5, "feed_forward_proj": "gated-gelu"},
    "LongT5ForConditionalGeneration": {**_T5, "local_radius": 3},
}


_WITHOUT_MASK = ("RwkvModel", "MambaModel", "FNetModel")


def _entry(model: str, options: Mapping[str, Any]) -> Entry:
    inputs = dict(TOKENS)
    if model in _WITHOUT_MASK:
        del inputs["attention_mask"]
    return entry(model, options, inputs, SIZES)


ENTRIES = (
    *(_entry(model, options) for model, options in ENCODERS.items()),
    *(_entry(model, options) for model, options in DECODERS.items()),
    *(entry(model, options, BOTH_SIDES, BOTH_SIZES) for model, options in SEQUENCES.items()),
)
