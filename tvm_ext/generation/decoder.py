"""What the inputs and outputs of a decoder are for, and the arrays of one of its runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_ext.errors import InputError
from tvm_ext.session.decoder_model import logits_of
from tvm_ext.tensor_spec import TensorSpec

# Names that exporters give, with the rank that goes with each. A name that begins with "decoder_"
# is the same to the decoder.
_TOKENS, _MASK, _POSITIONS = "tokens", "mask", "positions"
_PLACES, _BRANCH, _KEPT, _TYPES = "places", "branch", "kept logits", "token types"
_ENCODED, _ENCODED_MASK = "encoder's states", "encoder's mask"
_ROLES: dict[tuple[str, int], str] = {
    ("input_ids", 2): _TOKENS,
    ("attention_mask", 2): _MASK,
    ("position_ids", 2): _POSITIONS,
    ("cache_position", 1): _PLACES,
    ("use_cache_branch", 1): _BRANCH,
    ("use_cache_branch", 0): _BRANCH,
    ("num_logits_to_keep", 0): _KEPT,
    ("num_logits_to_keep", 1): _KEPT,
    ("token_type_ids", 2): _TYPES,
    ("encoder_hidden_states", 3): _ENCODED,
    ("encoder_outputs", 3): _ENCODED,
    ("encoder_attention_mask", 2): _ENCODED_MASK,
}
_WANTED = "input_ids, attention_mask, position_ids, use_cache_branch, encoder_hidden_states"


@dataclass(frozen=True)
class DecoderForm:
    """A decoder's inputs by what they are for, and its logits.

    Attributes
    ----------
    inputs : dict[str, TensorSpec]
        What an input is for, to the input.
    logits : TensorSpec
        The output of shape (batch, length, vocabulary).
    """

    inputs: Mapping[str, TensorSpec]
    logits: TensorSpec

    @classmethod
    def found(
        cls,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        state: Collection[str],
    ) -> "DecoderForm":
        """The form of a model whose inputs and outputs in ``state`` are its state.

        Raises
        ------
        InputError
            It reads no tokens, gives no logits, or has an input whose purpose is not known.
        """
        roles: dict[str, TensorSpec] = {}
        for spec in inputs:
            if spec.name in state:
                continue
            role = _role(spec)
            if role is None or role in roles:
                raise InputError(
                    f"input '{spec.describe()}' is not known from other decoders; expected only "
                    f"{_WANTED} and a state: run it with model.session(), and choose the tokens "
                    "yourself"
                )
            roles[role] = spec
        if _TOKENS not in roles:
            raise InputError(
                "the model reads no tokens; expected an input input_ids of shape (batch, length): "
                "give the decoder of a language model"
            )
        return cls(roles, _logits(outputs, state))

    def has(self, role: str) -> bool:
        """Whether the model has an input for this."""
        return role in self.inputs

    @property
    def vocabulary(self) -> int | None:
        """The number of logits; None where a run decides it."""
        size = self.logits.shape[-1]
        return size if isinstance(size, int) else None

    @property
    def encoder_input(self) -> str | None:
        """The input for the states of an encoder; None for a model without."""
        return self.inputs[_ENCODED].name if self.has(_ENCODED) else None

    @property
    def takes_padding(self) -> bool:
        """Whether prompts of several lengths can share a batch.

        The mask alone does not do: positions that the model counts itself would count the padding.
        """
        return self.has(_MASK) and self.has(_POSITIONS)


def _logits(outputs: Sequence[TensorSpec], state: Collection[str]) -> TensorSpec:
    found = logits_of(outputs, state)
    if found is None:
        names = ", ".join(spec.name for spec in outputs if spec.name not in state) or "none"
        raise InputError(
            f"the model gives no logits (its outputs beside the state: {names}); expected an "
            "output logits of shape (batch, length, vocabulary): export it with a language-model "
            "head"
        )
    return found


@dataclass
class DecoderRows:
    """The rows of a batch in a decoder: which places of the state are padding, and what was read.

    Attributes
    ----------
    form : DecoderForm
        What the inputs are for.
    capacity : int
        Places of the state in each row.
    encoded : dict[str, np.ndarray]
        What an encoder gave, by the decoder's input.
    """

    form: DecoderForm
    rows: int
    capacity: int
    encoded: Mapping[str, np.ndarray] = field(default_factory=dict)
    length: int = 0

    def __post_init__(self) -> None:
        self._mask = np.ones((self.rows, self.capacity), dtype=self._dtype(_MASK))
        self._read = np.zeros((self.rows, 1), dtype=np.int64)
        self._encoded = self._from_encoder()

    def arrays(self, tokens: np.ndarray, padding: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """The inputs of the run that reads these tokens behind those of the runs before.

        Parameters
        ----------
        tokens : array of shape (rows, length)
            Tokens of each row.
        padding : sequence of int
            How many of each row's first tokens are none, in the first run; none without it.
        """
        length, end = tokens.shape[1], self.length + tokens.shape[1]
        skipped = np.zeros((self.rows, 1), dtype=np.int64)
        if padding:
            skipped[:, 0] = padding
            self._mask[:, : tokens.shape[1]] = np.arange(length) >= skipped
        # Places of padding have position 0, which no row reads.
        positions = np.maximum(self._read + np.arange(length) - skipped, 0)
        self._read += length - skipped
        given = {
            _TOKENS: tokens,
            _MASK: self._mask[:, :end],
            _POSITIONS: positions,
            _PLACES: np.arange(self.length, end),
            _BRANCH: np.array(self.length > 0),
            _KEPT: np.array(1),
            _TYPES: np.zeros_like(tokens),
        }
        self.length = end
        known = {role: spec for role, spec in self.form.inputs.items() if role in given}
        return self._encoded | {
            spec.name: _as_input(given[role], spec) for role, spec in known.items()
        }

    def _from_encoder(self) -> dict[str, np.ndarray]:
        """The encoder's states, and a mask under which all of them are read."""
        specs = self.form.inputs
        found: dict[str, np.ndarray] = dict(self.encoded)
        states, mask = specs.get(_ENCODED), specs.get(_ENCODED_MASK)
        if states is not None and mask is not None and mask.name not in found:
            shape = found[states.name].shape[:2]
            found[mask.name] = np.ones(shape, dtype=mask.dtype)
        return found

    def _dtype(self, role: str) -> Any:
        spec = self.form.inputs.get(role)
        return spec.dtype if spec is not None else "int64"


def _as_input(values: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """With the dtype of the input, and its rank, where both have one element."""
    array = np.ascontiguousarray(values, dtype=spec.dtype)
    return array.reshape((1,) * len(spec.shape)) if values.ndim == 0 else array


def encoder_inputs(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, TensorSpec | None]:
    """A decoder's inputs for the states of an encoder and, if there is one, for their mask.

    Raises
    ------
    InputError
        The decoder reads no encoder.
    """
    found = {_role(spec): spec for spec in inputs}
    if _ENCODED not in found:
        raise InputError(
            "an encoder was given, and the decoder has no input encoder_hidden_states; expected "
            "the decoder of an encoder-decoder model: leave the encoder out"
        )
    return found[_ENCODED], found.get(_ENCODED_MASK)


def _role(spec: TensorSpec) -> str | None:
    """What an input is for, by its name and rank; None where that is not known."""
    return _ROLES.get((spec.name.removeprefix("decoder_"), len(spec.shape)))
