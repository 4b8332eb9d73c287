"""transformers: decoders with experts, with states instead of attention, and with both."""

from collections.abc import Mapping
from typing import Any

from .entry import integers
from .tiny_transformers import entry
from .transformers_language import SIZES, TOKENS

_WIDTHS = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
    "pad_token_id": 0,
}
_HEADS = {**_WIDTHS, "head_dim": 16}
_EXPERTS = {**_WIDTHS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MAMBA = {"mamba_d_state": 4, "mamba_d_conv": 4, "mamba_expand": 2}
_LATENT = {
    **_WIDTHS,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}

ATTENTION: Mapping[str, Mapping[str, Any]] = {
    "Gemma3ForCausalLM": {**_HEADS, "sliding_window": 4, "sliding_window_pattern": 2},
    "Cohere2ForCausalLM": {**_HEADS, "sliding_window": 4, "sliding_window_pattern": 2},
    "Olmo2ForCausalLM": _WIDTHS,
    "Olmo3ForCausalLM": {**_WIDTHS, "sliding_window": 4},
    "Glm4ForCausalLM": {**_HEADS, "partial_rotary_factor": 0.5},
    "Exaone4ForCausalLM": {**_HEADS, "sliding_window": 4},
    "NemotronForCausalLM": _HEADS,
    "PersimmonForCausalLM": _WIDTHS,
    "HeliumForCausalLM": _HEADS,
    "BitNetForCausalLM": _WIDTHS,
    "DiffLlamaForCausalLM": _WIDTHS,
    "ModernBertDecoderForCausalLM": {**_WIDTHS, "local_attention": 8},
    "XGLMForCausalLM": {
        **{"vocab_size": 99, "d_model": 32, "num_layers": 2, "attention_heads": 2},
        "ffn_dim": 48,
    },
    "BioGptForCausalLM": _WIDTHS,
    "CTRLModel": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 2, "dff": 48},
    "OpenAIGPTModel": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 2},
    "Lfm2ForCausalLM": {**_WIDTHS, "full_attn_idxs": [1], "conv_L_cache": 3},
    "MegatronBertModel": _WIDTHS,
    "RemBertModel": {**_WIDTHS, "input_embedding_size": 16, "output_embedding_size": 16},
    "LukeModel": {**_WIDTHS, "entity_vocab_size": 9, "entity_emb_size": 16},
    "SplinterModel": _WIDTHS,
    "XmodModel": {**_WIDTHS, "default_language": "en_XX", "languages": ["en_XX"]},
    "RoCBertModel": {**_WIDTHS, "pronunciation_vocab_size": 9, "shape_vocab_size": 9},
    "TapasModel": _WIDTHS,
    "PerceiverForMaskedLM": {
        **{"vocab_size": 99, "d_model": 32, "d_latents": 32, "num_latents": 6},
        **{"num_blocks": 1, "num_self_attends_per_block": 2, "max_position_embeddings": 10},
        **{"num_self_attention_heads": 2, "num_cross_attention_heads": 2},
        **{"qk_channels": 32, "v_channels": 32},
    },
}
EXPERTS: Mapping[str, Mapping[str, Any]] = {
    "Qwen2MoeForCausalLM": {**_EXPERTS, "shared_expert_intermediate_size": 16},
    "Qwen3MoeForCausalLM": {**_EXPERTS, "head_dim": 16},
    "OlmoeForCausalLM": _EXPERTS,
    "DeepseekV2ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _LATENT,
    "PhimoeForCausalLM": {**_WIDTHS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoeForCausalLM": {**_WIDTHS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "JetMoeForCausalLM": {
        **{"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "kv_channels": 8},
        **{"num_key_value_heads": 2, "intermediate_size": 48, "num_local_experts": 4},
        **{"num_experts_per_tok": 2, "pad_token_id": 0},
    },
    "GptOssForCausalLM": {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DbrxForCausalLM": {
        **{"vocab_size": 99, "d_model": 32, "n_heads": 2, "n_layers": 2, "pad_token_id": 0},
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
    },
}
STATES: Mapping[str, Mapping[str, Any]] = {
    "Mamba2Model": {
        **{"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        **{"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4},
    },
    "FalconMambaModel": {
        **{"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    },
    "JambaModel": {
        **{**_WIDTHS, **_MAMBA, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
        **{"expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False},
    },
    "BambaModel": {
        **{**_WIDTHS, **_MAMBA, "attn_layer_indices": [1], "mamba_n_heads": 4},
        **{"mamba_d_head": 16, "mamba_chunk_size": 4},
    },
    "FalconH1Model": {
        **{**_WIDTHS, **_MAMBA, "mamba_n_heads": 4, "mamba_d_head": 16},
        **{"mamba_chunk_size": 4, "mamba_d_ssm": 64},
    },
}
_WITHOUT_MASK = ("Mamba2Model", "FalconMambaModel", "RoCBertModel")
_TOKENS_ONLY = {"input_ids": integers("batch", "length", low=3, high=99)}

ENTRIES = tuple(
    entry(model, options, _TOKENS_ONLY if model in _WITHOUT_MASK else TOKENS, SIZES)
    for models in (ATTENTION, EXPERTS, STATES)
    for model, options in models.items()
)
