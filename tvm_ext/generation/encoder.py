"""The states that an encoder makes of prompts or of a waveform, for the decoder behind it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_ext.errors import InputError
from tvm_ext.generation.decoder import encoder_inputs
from tvm_ext.tensor_spec import TensorSpec, listed

if TYPE_CHECKING:
    from tvm_ext.session.decoder_model import SessionModel


def encode_text(
    encoder: "SessionModel", decoder: "SessionModel", prompts: Sequence[Sequence[int]]
) -> dict[str, np.ndarray]:
    """What an encoder makes of prompts, and which of it is padding, by the decoder's input.

    Raises
    ------
    InputError
        The encoder reads no tokens, or prompts of several lengths cannot share its batch.
    """
    reads = {spec.name: spec for spec in encoder.inputs}
    states, mask = encoder_inputs(decoder.inputs)
    if "input_ids" not in reads or set(reads) - {"input_ids", "attention_mask"}:
        raise InputError(
            f"the encoder reads {listed(list(reads))}; expected input_ids and attention_mask: give "
            "the encoder of a text model, or a waveform (tvm_ext.transcribe, --audio)"
        )
    longest = max(map(len, prompts))
    is_padded = any(len(prompt) < longest for prompt in prompts)
    if is_padded and ("attention_mask" not in reads or mask is None):
        raise InputError(
            "prompts of several lengths were given, and the model cannot be told what is padding "
            "(it has no attention_mask); expected prompts of one length: give one at a time"
        )
    tokens = np.zeros((len(prompts), longest), dtype=reads["input_ids"].dtype)
    is_read = np.zeros(tokens.shape, dtype=np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)], is_read[row, : len(prompt)] = prompt, 1
    given = {"input_ids": tokens}
    if "attention_mask" in reads:
        given["attention_mask"] = is_read.astype(reads["attention_mask"].dtype)
    found = {states.name: _states(encoder, given)}
    return found if mask is None else {**found, mask.name: is_read.astype(mask.dtype)}


def encode_array(
    encoder: "SessionModel", decoder: "SessionModel", array: np.ndarray
) -> dict[str, np.ndarray]:
    """What an encoder with one input makes of an array, by the decoder's input."""
    states, _ = encoder_inputs(decoder.inputs)
    return {states.name: _states(encoder, {audio_input(encoder).name: array})}


def audio_input(encoder: "SessionModel") -> TensorSpec:
    """The input of an encoder for sound; raises InputError if it has another one."""
    reads = [spec for spec in encoder.inputs if "float" in spec.dtype]
    if len(encoder.inputs) == 1 and reads and len(reads[0].shape) in (2, 3):
        return reads[0]
    raise InputError(
        f"the encoder reads {listed([spec.describe() for spec in encoder.inputs])}; expected one "
        "input, a waveform of shape (batch, samples) or a spectrum of shape (batch, mel bands, "
        "frames): give the encoder of a speech model"
    )


def _states(encoder: "SessionModel", given: dict[str, np.ndarray]) -> np.ndarray:
    """The output of rank 3 that comes first; others are attention maps."""
    outputs = encoder.run(given)
    name = next((s.name for s in encoder.outputs if np.ndim(outputs[s.name]) == 3), None)
    if name is None:
        names = listed([spec.describe() for spec in encoder.outputs])
        raise InputError(
            f"the encoder gives {names}; expected states of shape (batch, length, width): give "
            "the encoder that belongs to the decoder"
        )
    return np.asarray(outputs[name])
