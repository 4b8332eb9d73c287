"""``tvm_ext.transcribe``: from a waveform to the text that is spoken in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tvm_ext.errors import InputError
from tvm_ext.generation.audio import SAMPLES_PER_SECOND, log_mel_spectrum, waveform
from tvm_ext.generation.encoder import audio_input, encode_array
from tvm_ext.generation.generate import (
    Generation,
    ModelSource,
    OnPiece,
    Prompt,
    TextOptions,
    finished,
    opened,
    paths_of,
)
from tvm_ext.generation.model_files import ModelFiles
from tvm_ext.generation.sampling import Sampling
from tvm_ext.generation.tokenizer import TextTokenizer, TokenizerSource

if TYPE_CHECKING:
    from tvm_ext.session.decoder_model import SessionModel


def transcribe(
    model: ModelSource,
    audio: "np.ndarray | str | Path",
    *,
    encoder: ModelSource,
    tokenizer: "TokenizerSource | None" = None,
    prompt: "Prompt | None" = None,
    samples_per_second: int = SAMPLES_PER_SECOND,
    max_new_tokens: int = 200,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    end_tokens: "Sequence[int | str] | None" = None,
    stream: "OnPiece | Literal[True] | None" = None,
) -> Any:
    """Writes down what is spoken, by the encoder and the decoder of a speech model.

    Parameters
    ----------
    model, encoder : CompiledModel, str or Path
        The decoder with a state, such as a merged one, and the encoder. An encoder of shape
        (batch, samples), as Moonshine's, reads the waveform. One of shape (batch, mel bands,
        frames), as Whisper's, reads its spectrum over 30 s.
    audio : array of shape (samples,), str or Path
        Samples from -1 to 1 of one channel, or a WAV file.
    prompt : str or sequence of int, optional
        With what the decoder begins, special tokens included, for example
        ``"<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"``. The default is what
        generation_config.json beside the tokenizer or the model says.
    samples_per_second : int
        Rate of an array; a file says its own.
    tokenizer, max_new_tokens, temperature, top_k, top_p, repetition_penalty, seed, stop, end_tokens
        As for ``generate``.
    stream : callable or True, optional
        As for ``generate``.

    Returns
    -------
    GeneratedText or Generation
        The text or, with ``stream=True``, the iterator over its pieces.

    Raises
    ------
    InputError
        As for ``generate``; the sound cannot be read or lasts too long; or nothing says with what
        the decoder begins.
    TvmExtError
        As ``generate``.
    """
    sampling = Sampling(repetition_penalty, temperature, top_k, top_p, seed)
    options = TextOptions(tokenizer, max_new_tokens, sampling, stop, end_tokens)
    made = start_transcription(
        opened(model, is_decoder=True),
        opened(encoder),
        waveform(audio, samples_per_second),
        options,
        ModelFiles.beside(paths_of(tokenizer, model)),
        prompt,
    )
    return finished(made, stream, is_one=True)


def start_transcription(
    model: "SessionModel",
    encoder: "SessionModel",
    samples: np.ndarray,
    options: TextOptions,
    files: ModelFiles,
    prompt: "Prompt | None" = None,
) -> Generation:
    """The text of a waveform (float32, 16,000 samples a second), ahead of the decoder's first run;
    raises as ``transcribe``.
    """
    tokenizer = options.text_tokenizer()
    limits = options.limits(tokenizer, files)
    begun = _start(prompt, tokenizer, files)
    encoded = encoded_audio(encoder, model, samples)
    return Generation(model, [begun], tokenizer, options.sampling, limits, files, encoded)


def _start(
    prompt: "Prompt | None", tokenizer: TextTokenizer | None, files: ModelFiles
) -> list[int]:
    if isinstance(prompt, str) and tokenizer is not None:
        tokens = tokenizer.tokens_of(prompt, with_special=False)
    elif isinstance(prompt, str):
        raise InputError(
            "the prompt is text and there is no tokenizer; expected the model's tokenizer.json: "
            "give tokenizer=, or give the tokens"
        )
    else:
        tokens = list(files.start_tokens if prompt is None else prompt)
    if not tokens:
        raise InputError(
            "nothing says with what the decoder begins; expected decoder_start_token_id in a "
            "generation_config.json beside the tokenizer or the model: give prompt="
        )
    return tokens


def encoded_audio(
    encoder: "SessionModel", decoder: "SessionModel", samples: np.ndarray
) -> dict[str, np.ndarray]:
    """What an encoder makes of a waveform, by the decoder's input; raises as ``transcribe``."""
    spec = audio_input(encoder)
    if len(spec.shape) == 2:
        return encode_array(encoder, decoder, samples[None])
    bands = spec.shape[1]
    spectrum = log_mel_spectrum(samples, bands if isinstance(bands, int) else 80)
    return encode_array(encoder, decoder, spectrum[None])
