"""Prompts, tokenizers and models from which no text can be made."""

import functools

import numpy as np
from language_models import byte_tokenizer, causal_lm
from provoked import case, command, compiled, relu, saved

import tvm_ext
from tvm_ext.generation.audio import log_mel_spectrum, waveform


@functools.cache
def decoder() -> tvm_ext.CompiledModel:
    return compiled(causal_lm(vocabulary=100))


def refused_text(name, *says, prompt=(1, 2, 3), **options):
    @case(name, *says)
    def _(folder):
        tvm_ext.generate(decoder(), prompt, **options)


refused_text("a prompt longer than the session", "3 tokens", "holds 3", capacity=3)
refused_text("a session of no room", "capacity is 1", capacity=1)
refused_text("a text of no tokens", "max_new_tokens is 0", max_new_tokens=0)
refused_text("a prompt that is empty", "no tokens", prompt=[[]])
refused_text("no prompt", "no prompt", prompt=[])
refused_text("a token without logits", "token 100", prompt=[100])
refused_text("a text without a tokenizer", "tokenizer", prompt="text")
refused_text("a temperature below zero", "temperature is -1", temperature=-1)
refused_text("top-k of nothing that is drawn", "top_k", top_k=3)
refused_text("a stop string that is empty", "stop string", stop="")
refused_text("an end token that is no number", "'</s>'", end_tokens=["</s>"])
refused_text("a tokenizer of another kind", "int", tokenizer=3)


@case("a tokenizer of another model", "256", "100")
def _(folder):
    tvm_ext.generate(decoder(), "text", tokenizer=byte_tokenizer(folder))


@case("a tokenizer that is no tokenizer", "tokenizer.json")
def _(folder):
    (folder / "tokenizer.json").write_text("{}")
    tvm_ext.generate(decoder(), "text", tokenizer=folder / "tokenizer.json")


@case("a token that a tokenizer lacks", "'<none>'")
def _(folder):
    tvm_ext.generate(decoder(), "a", tokenizer=byte_tokenizer(folder), end_tokens=["<none>"])


@case("a model without a state that is to make a text", "no state")
def _(folder):
    return command("generate", saved(folder, relu()), "--prompt-tokens", "1")


@case("a decoder that has no encoder", "encoder_hidden_states")
def _(folder):
    tvm_ext.generate(decoder(), [1], encoder=decoder())


@case("sound that is none", "a.wav")
def _(folder):
    waveform(folder / "a.wav", 16000)


@case("a recording that is too long", "31.0 s")
def _(folder):
    log_mel_spectrum(np.zeros(31 * 16000, np.float32))


@case("prompt tokens that are no numbers", "'1,x'")
def _(folder):
    return command("generate", saved(folder, relu()), "--prompt-tokens", "1,x")
