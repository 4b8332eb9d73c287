"""transformers as Optimum exports them: by task, decoders with past, both decoders in an If."""

from collections.abc import Mapping
from typing import Any

from .entry import DYNAMIC, Entry, Sizes
from .tiny_transformers import builder
from .transformers_cached import TRIPLES
from .transformers_language import DECODERS, ENCODERS, SEQUENCES
from .transformers_speech import WHISPER


def _sizes(batch: int, length: int, past: int) -> Sizes:
    """What Optimum's names of dimensions are; its encoder-decoders decode single tokens."""
    return {
        "batch_size": batch,
        "sequence_length": length,
        "past_sequence_length": past,
        "encoder_sequence_length": length + 3,
        "encoder_sequence_length_out": length + 3,
        "decoder_sequence_length": 1,
        "past_decoder_sequence_length": past,
    }


SIZES: tuple[Sizes, ...] = tuple(_sizes(*triple) for triple in TRIPLES)
_GENERATION = "text-generation-with-past"
_TRANSLATION = "text2text-generation-with-past"
_SPEECH = "automatic-speech-recognition-with-past"

_GENERATED = (
    *("GPT2LMHeadModel", "GPTNeoXForCausalLM", "OPTForCausalLM", "BloomForCausalLM"),
    *("GPTBigCodeForCausalLM", "GPTNeoForCausalLM", "GPTJForCausalLM", "CodeGenForCausalLM"),
    *("FalconForCausalLM", "MptForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM"),
    *("Gemma2ForCausalLM", "StableLmForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM"),
    *("GemmaForCausalLM", "PhiForCausalLM", "MistralForCausalLM"),
)

# Class of the model, its task, its configuration.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "BertModel": ("feature-extraction", ENCODERS["BertModel"]),
    "DistilBertForMaskedLM": ("fill-mask", ENCODERS["DistilBertForMaskedLM"]),
    **{name: (_GENERATION, DECODERS[name]) for name in _GENERATED},
    "T5ForConditionalGeneration": (_TRANSLATION, SEQUENCES["T5ForConditionalGeneration"]),
    "BartForConditionalGeneration": (_TRANSLATION, SEQUENCES["BartForConditionalGeneration"]),
    "MarianMTModel": (_TRANSLATION, SEQUENCES["MarianMTModel"]),
    # Optimum draws 3000 frames, whatever the model takes; of two frames the encoder makes one.
    "WhisperForConditionalGeneration": (_SPEECH, {**WHISPER, "max_source_positions": 1500}),
}


def _entry(model: str, task: str, options: Mapping[str, Any]) -> Entry:
    build = builder(model, options, use_cache=True)
    return Entry(
        f"Optimum {model}",
        "transformers by Optimum",
        ("optimum",),
        build,
        {},
        SIZES,
        forms=(DYNAMIC,),
        options={"task": task},
    )


ENTRIES = tuple(_entry(model, task, options) for model, (task, options) in MODELS.items())
