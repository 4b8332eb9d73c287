"""transformers as Optimum exports them: by task, decoders with past, both decoders in an If."""

from collections.abc import Mapping
from typing import Any

from .entry import DYNAMIC, Entry, Sizes
from .tiny_transformers import builder
from .transformers_language import DECODERS, ENCODERS, SEQUENCES
from .transformers_speech import WHISPER

# Names that Optimum gives to dimensions, at each of the sizes.
SIZES: tuple[Sizes, ...] = (
    {
        "batch_size": 2,
        "sequence_length": 5,
        "past_sequence_length": 3,
        "encoder_sequence_length": 6,
        "encoder_sequence_length_out": 6,
        "decoder_sequence_length": 1,
        "past_decoder_sequence_length": 3,
    },
    {
        "batch_size": 1,
        "sequence_length": 1,
        "past_sequence_length": 8,
        "encoder_sequence_length": 4,
        "encoder_sequence_length_out": 4,
        "decoder_sequence_length": 1,
        "past_decoder_sequence_length": 5,
    },
)
_GENERATION = "text-generation-with-past"
_TRANSLATION = "text2text-generation-with-past"
_SPEECH = "automatic-speech-recognition-with-past"

# Class of the model, its task, its configuration.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "BertModel": ("feature-extraction", ENCODERS["BertModel"]),
    "DistilBertForMaskedLM": ("fill-mask", ENCODERS["DistilBertForMaskedLM"]),
    "GPT2LMHeadModel": (_GENERATION, DECODERS["GPT2LMHeadModel"]),
    "GPTNeoXForCausalLM": (_GENERATION, DECODERS["GPTNeoXForCausalLM"]),
    "OPTForCausalLM": (_GENERATION, DECODERS["OPTForCausalLM"]),
    "BloomForCausalLM": (_GENERATION, DECODERS["BloomForCausalLM"]),
    "LlamaForCausalLM": (_GENERATION, DECODERS["LlamaForCausalLM"]),
    "Qwen2ForCausalLM": (_GENERATION, DECODERS["Qwen2ForCausalLM"]),
    "GemmaForCausalLM": (_GENERATION, DECODERS["GemmaForCausalLM"]),
    "PhiForCausalLM": (_GENERATION, DECODERS["PhiForCausalLM"]),
    "MistralForCausalLM": (_GENERATION, DECODERS["MistralForCausalLM"]),
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
