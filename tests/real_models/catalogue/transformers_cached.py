"""transformers: decoders that take the keys and values of earlier tokens and return them longer.

A cache either grows with every token, or has its full length from the beginning and is written at
the positions of the new tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any

from .entry import Entry, Input, floats, integers
from .tiny_transformers import BOTH, builder
from .transformers_language import DECODERS
from .transformers_newer import ATTENTION, EXPERTS

LAYERS, HEADS, HEAD_SIZE = 2, 1, 16
# Batch, new tokens and tokens before: prompts, single tokens, a few, behind none and many.
TRIPLES = (
    *((2, 3, 5), (1, 1, 9), (1, 1, 1), (1, 7, 0), (3, 1, 17)),
    *((1, 17, 0), (2, 9, 33), (5, 2, 1), (4, 1, 0), (1, 33, 12)),
)
_GROWING_SIZES = tuple(
    {"batch": batch, "length": length, "past": past} for batch, length, past in TRIPLES
)
_FULL_SIZES = ({"batch": 2, "length": 3}, {"batch": 1, "length": 1})
_FULL_LENGTH = 12
MODELS: Mapping[str, Mapping[str, Any]] = {
    **{name: DECODERS[name] for name in ("LlamaForCausalLM", "MistralForCausalLM")},
    **{name: DECODERS[name] for name in ("Gemma2ForCausalLM", "Phi3ForCausalLM")},
    **{name: ATTENTION[name] for name in ("Gemma3ForCausalLM", "Cohere2ForCausalLM")},
    "Qwen3MoeForCausalLM": EXPERTS["Qwen3MoeForCausalLM"],
}


def _with_cache(
    model: str, options: Mapping[str, Any], run: Callable[..., Any]
) -> Callable[[], Any]:
    """Builds the model as ``run(model, *inputs)``: exporters know tensors, and no caches."""

    def build() -> Any:
        import torch

        inner = builder(model, options, use_cache=True)()

        class WithCache(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, *inputs: Any) -> Any:
                return run(self.inner, *inputs)

        return WithCache()

    return build


def _run_growing(inner: Any, input_ids: Any, attention_mask: Any, *past: Any) -> Any:
    from transformers import DynamicCache

    cache = DynamicCache.from_legacy_cache(tuple(zip(past[::2], past[1::2], strict=True)))
    found = inner(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache)
    return found.logits, found.past_key_values.to_legacy_cache()


def _run_full(inner: Any, input_ids: Any, positions: Any, *past: Any) -> Any:
    from transformers import StaticCache

    cache = StaticCache(config=inner.config, max_cache_len=_FULL_LENGTH)
    for layer, keys, values in zip(cache.layers, past[::2], past[1::2], strict=True):
        layer.lazy_initialization(keys)
        layer.keys, layer.values = keys.clone(), values.clone()
    found = inner(input_ids=input_ids, past_key_values=cache, cache_position=positions)
    return found.logits, [(layer.keys, layer.values) for layer in cache.layers]


def _past(*length: int | str) -> dict[str, Input]:
    return {
        f"past_{part}_{layer}": floats("batch", HEADS, *length, HEAD_SIZE)
        for layer in range(LAYERS)
        for part in ("keys", "values")
    }


def _growing(model: str, options: Mapping[str, Any]) -> Entry:
    heads = {"num_key_value_heads": HEADS, "head_dim": HEAD_SIZE}
    inputs = {
        "input_ids": integers("batch", "length", low=3, high=99),
        "attention_mask": Input("int64", ("batch", "past+length"), "value", 1),
        **_past("past"),
    }
    build = _with_cache(model, {**options, **heads}, _run_growing)
    return Entry(
        f"{model} with growing cache",
        "transformers (language, speech)",
        BOTH,
        build,
        inputs,
        _GROWING_SIZES,
    )


def _full(model: str, options: Mapping[str, Any]) -> Entry:
    heads = {"num_key_value_heads": HEADS, "head_dim": HEAD_SIZE}
    inputs = {
        "input_ids": integers("batch", "length", low=3, high=99),
        "positions": integers("length", low=2, high=3),
        **_past(_FULL_LENGTH),
    }
    build = _with_cache(model, {**options, **heads}, _run_full)
    return Entry(
        f"{model} with full cache",
        "transformers (language, speech)",
        BOTH,
        build,
        inputs,
        _FULL_SIZES,
    )


ENTRIES = (
    *(_growing(model, options) for model, options in MODELS.items()),
    *(_full(model, MODELS[model]) for model in ("LlamaForCausalLM", "Qwen3MoeForCausalLM")),
)
