"""``tvm_ext.generate``: from a prompt to a text, a token a run."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tvm_ext.errors import InputError
from tvm_ext.generation.decoder import DecoderForm, DecoderRows
from tvm_ext.generation.encoder import encode_text
from tvm_ext.generation.model_files import ModelFiles
from tvm_ext.generation.sampling import Sampler, Sampling
from tvm_ext.generation.speed import GenerationSpeed, StateSize
from tvm_ext.generation.tokenizer import GrowingText, TextTokenizer, TokenizerSource
from tvm_ext.report.units import format_count
from tvm_ext.session.state_pairs import find_state, require_state

if TYPE_CHECKING:
    from tvm_ext.session import Session
    from tvm_ext.session.decoder_model import SessionModel

Prompt: TypeAlias = "str | Sequence[int]"
"""A text, or its tokens."""

ModelSource: TypeAlias = "SessionModel | str | Path"
"""A compiled model, or the path of an ONNX or a saved model."""

FinishReason = Literal["end token", "stop string", "length", "context full", "interrupted"]


@dataclass(frozen=True)
class TextPiece:
    """Some characters of a text, as soon as they are known.

    Attributes
    ----------
    text : str
        The characters.
    number : int
        Which of the prompts they follow, from 0 on.
    """

    text: str
    number: int = 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class GeneratedText:
    """What followed a prompt.

    Attributes
    ----------
    text : str
        The text behind the prompt, without special tokens and without the stop string that ended
        it. Empty where no tokenizer was given.
    tokens : tuple[int, ...]
        Its tokens, with the one that ended it.
    finish_reason : str
        Why it ended: "end token", "stop string", "length" (``max_new_tokens`` are there),
        "context full" (the model or the session has no room for more), or "interrupted".
    prompt_tokens : tuple[int, ...]
        The tokens of the prompt.
    speed : GenerationSpeed
        How long it took, and what was read. Texts of one call share it.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: tuple[int, ...]
    speed: GenerationSpeed

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "finish_reason": self.finish_reason,
            "prompt_tokens": list(self.prompt_tokens),
        }


@dataclass
class _Text:
    """A text that grows."""

    prompt: tuple[int, ...]
    sampler: Sampler
    growing: GrowingText
    number: int
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None


@dataclass(frozen=True)
class Limits:
    """When a text ends.

    Attributes
    ----------
    max_new_tokens : int
        Tokens of a text, at most.
    end_tokens : frozenset[int]
        Tokens that end a text.
    stops : tuple[str, ...]
        Strings that end a text.
    capacity : int, optional
        Tokens of a prompt and its text together that the session holds; as many as are needed
        where None.
    context : int, optional
        Tokens that the model can read, where that is known.
    """

    max_new_tokens: int
    end_tokens: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    capacity: int | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(
                f"max_new_tokens is {self.max_new_tokens}; expected 1 or more: give a larger one"
            )
        if "" in self.stops:
            raise InputError("a stop string is empty; expected some characters: leave it out")
        if self.capacity is not None and self.capacity < 2:
            raise InputError(
                f"the capacity is {self.capacity}; expected room for a prompt and a token: give "
                "a larger one"
            )

    def room(self, prompt: int) -> int:
        """Tokens that a session for a prompt of so many tokens holds.

        Raises
        ------
        InputError
            The prompt is longer than what it may hold.
        """
        for limit, what, remedy in (
            (self.context, "the model's context", "shorten the prompt"),
            (self.capacity, "the session", "shorten the prompt, or give a larger capacity"),
        ):
            if limit is not None and prompt >= limit:
                raise InputError(
                    f"the prompt has {format_count(prompt, 'token')}, and {what} holds {limit}; "
                    f"expected at most {limit - 1}, so that one can follow: {remedy}"
                )
        # The last token is chosen and not read.
        wanted = prompt + self.max_new_tokens - 1
        limits = [limit for limit in (self.context, self.capacity) if limit is not None]
        return min([wanted, *limits])


class Generation:
    """Texts that are being made: an iterator over their pieces.

    ``generate(..., stream=True)`` returns it. Whoever stops iterating, or is interrupted, finds in
    ``results`` what was made until then.

    Attributes
    ----------
    results : list[GeneratedText]
        One text for each prompt, as far as it is.
    """

    def __init__(
        self,
        model: "SessionModel",
        prompts: Sequence[Sequence[int]],
        tokenizer: TextTokenizer | None,
        sampling: Sampling,
        limits: Limits,
        files: ModelFiles | None = None,
        encoded: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._model, self._limits = model, limits
        self._encoded = dict(encoded or {})
        pairs = find_state(model.inputs, model.outputs)
        require_state(pairs, model.outputs, model.report.model_name)
        state = {name for pair in pairs for name in (pair.input, pair.output)}
        self._form = DecoderForm.found(model.inputs, model.outputs, state)
        self._require_encoder()
        _require_vocabulary(tokenizer, prompts, self._form.vocabulary)
        for prompt in prompts:
            limits.room(len(prompt))
        known = files or ModelFiles()
        self._texts = [
            _Text(
                tuple(prompt),
                Sampler(sampling, prompt, number, known.suppressed, known.suppressed_first),
                GrowingText(tokenizer, limits.stops),
                number,
            )
            for number, prompt in enumerate(prompts)
        ]
        self._speed = GenerationSpeed.of(model.report, StateSize.of(model.inputs, pairs))
        # It compiles a program of its own, which all of its kind share: not while a clock runs.
        self._session(capacity=1)
        self._pieces = self._made()

    def __iter__(self) -> Iterator[TextPiece]:
        return self

    def __next__(self) -> TextPiece:
        return next(self._pieces)

    @property
    def speed(self) -> GenerationSpeed:
        """How long all texts took so far, and what was read."""
        return self._speed

    @property
    def results(self) -> list[GeneratedText]:
        """The texts as far as they are."""
        return [
            GeneratedText(
                text.growing.text,
                tuple(text.tokens),
                text.reason or "interrupted",
                text.prompt,
                self._speed,
            )
            for text in self._texts
        ]

    def _session(self, capacity: int, batch: int | None = None) -> "Session":
        """A session that computes the logits of the last position, which alone are read."""
        last = (self._form.logits.name,)
        return self._model.session(capacity, batch=batch, last_position=last)

    def _require_encoder(self) -> None:
        name = self._form.encoder_input
        if name is not None and name not in self._encoded:
            raise InputError(
                f"the decoder reads the states of an encoder ({name}); "
                "expected the encoder beside it: give encoder="
            )

    def _made(self) -> Iterator[TextPiece]:
        for texts in self._batches():
            yield from self._batch(texts)

    def _batches(self) -> list[list[_Text]]:
        """Texts that are made side by side: of one length where the model cannot be told what is
        padding.
        """
        if self._form.takes_padding:
            return [self._texts]
        by_length: dict[int, list[_Text]] = {}
        for text in self._texts:
            by_length.setdefault(len(text.prompt), []).append(text)
        return list(by_length.values())

    def _batch(self, texts: Sequence[_Text]) -> Iterator[TextPiece]:
        longest = max(len(text.prompt) for text in texts)
        room = self._limits.room(longest)
        session = self._session(capacity=room, batch=len(texts))
        rows = DecoderRows(self._form, len(texts), room, self._of_rows(texts))
        padding = [longest - len(text.prompt) for text in texts]
        tokens = np.array(
            [
                [*([0] * skipped), *text.prompt]
                for text, skipped in zip(texts, padding, strict=True)
            ],
            dtype=np.int64,
        )
        begun = time.perf_counter()
        logits = self._logits(session.run(rows.arrays(tokens, padding)))
        self._speed.add_prompts(sum(len(t.prompt) for t in texts), time.perf_counter() - begun)
        # Pieces are given out when no clock runs: what a caller does with them is no part of it.
        yield from list(self._chosen(texts, logits, session.length < room))
        while open_rows := sum(text.reason is None for text in texts):
            begun = time.perf_counter()
            tokens = np.array([text.tokens[-1:] for text in texts], dtype=np.int64)
            logits = self._logits(session.run(rows.arrays(tokens)))
            pieces = list(self._chosen(texts, logits, session.length < room))
            held = session.length * len(texts)
            self._speed.add_run(open_rows, time.perf_counter() - begun, held)
            yield from pieces

    def _chosen(
        self, texts: Sequence[_Text], logits: np.ndarray, has_room: bool
    ) -> Iterator[TextPiece]:
        """A token for each text that has not ended, and what is known of its text with it."""
        for text, row in zip(texts, logits, strict=True):
            if text.reason is not None:
                continue
            token = text.sampler.choose(row)
            text.tokens.append(token)
            piece, is_stopped = text.growing.add(token)
            text.reason = self._reason(text, is_stopped, has_room)
            if text.reason is not None:
                piece += text.growing.finish()
            if piece:
                yield TextPiece(piece, text.number)

    def _reason(self, text: _Text, is_stopped: bool, has_room: bool) -> FinishReason | None:
        if is_stopped:
            return "stop string"
        if text.tokens[-1] in self._limits.end_tokens:
            return "end token"
        if len(text.tokens) >= self._limits.max_new_tokens:
            return "length"
        return None if has_room else "context full"

    def _logits(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Logits of the last token of each row."""
        found = np.asarray(outputs[self._form.logits.name])[:, -1]
        return found if found.dtype == np.float32 else found.astype(np.float32)

    def _of_rows(self, texts: Sequence[_Text]) -> dict[str, np.ndarray]:
        """What the encoder gave for these texts."""
        numbers = [text.number for text in texts]
        return {name: array[numbers] for name, array in self._encoded.items()}


OnPiece: TypeAlias = Callable[[TextPiece], object]


@dataclass(frozen=True)
class TextOptions:
    """How texts are made, whatever comes ahead of them; ``generate`` says what each means."""

    tokenizer: "TokenizerSource | None" = None
    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    stop: str | Sequence[str] = ()
    end_tokens: "Sequence[int | str] | None" = None
    capacity: int | None = None

    def text_tokenizer(self) -> TextTokenizer | None:
        """The tokenizer, read from its file."""
        return TextTokenizer(self.tokenizer) if self.tokenizer is not None else None

    def limits(self, tokenizer: TextTokenizer | None, files: ModelFiles) -> Limits:
        """When a text ends."""
        return Limits(
            self.max_new_tokens,
            _end_tokens(self.end_tokens, tokenizer, files),
            (self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            self.capacity,
            files.context,
        )


def start_generation(
    model: "SessionModel",
    prompts: Sequence[Prompt],
    options: TextOptions,
    files: ModelFiles,
    encoder: "SessionModel | None" = None,
) -> Generation:
    """Texts behind prompts, ahead of the first run; raises as ``generate``."""
    tokenizer = options.text_tokenizer()
    limits = options.limits(tokenizer, files)
    tokens = [_tokens(one, tokenizer) for one in prompts]
    encoded = None
    if encoder is not None:
        encoded = encode_text(encoder, model, tokens)
        tokens = [list(files.start_tokens or (0,))] * len(tokens)
    return Generation(model, tokens, tokenizer, options.sampling, limits, files, encoded)


def generate(
    model: ModelSource,
    prompt: "Prompt | Sequence[Prompt]",
    *,
    tokenizer: "TokenizerSource | None" = None,
    encoder: "ModelSource | None" = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    end_tokens: "Sequence[int | str] | None" = None,
    capacity: int | None = None,
    stream: "OnPiece | Literal[True] | None" = None,
) -> Any:
    """Continues a prompt with the text that a language model makes of it.

    Parameters
    ----------
    model : CompiledModel, str or Path
        A decoder with a state: keys and values of earlier tokens as inputs and outputs, and an
        output ``logits``. A path is compiled or loaded with the defaults.
    prompt : str, sequence of int, or a list of them
        The text, or its tokens. Prompts of a list share a batch where the model reads
        ``attention_mask`` and ``position_ids``. Otherwise those of one length do. A chat model
        expects its own marks around a message, which are written as a part of the text.
    tokenizer : str, Path or tokenizers.Tokenizer, optional
        The model's tokenizer.json. Without it, prompts are tokens and texts stay empty. Needs the
        extra ``tvm-ext[text]``.
    encoder : CompiledModel, str or Path, optional
        The encoder of an encoder-decoder model such as T5. It reads the prompts, and the decoder
        begins with the start token of the model's generation_config.json, or with token 0.
    max_new_tokens : int
        Tokens of each text, at most.
    temperature, top_k, top_p, repetition_penalty, seed
        As in ``tvm_ext.generation.sampling.Sampling``. By default the most probable token is taken.
    stop : str or sequence of str
        Strings that end a text. They are left out of it.
    end_tokens : sequence of int or str, optional
        Tokens that end a text, by number or spelling. The default is what generation_config.json
        beside the tokenizer or the model says, or else the special tokens of usual names, such as
        ``</s>``.
    capacity : int, optional
        Tokens of a prompt and its text together that are kept. The default is what is needed, and
        no more than what config.json beside the tokenizer or the model says.
    stream : callable or True, optional
        A callable gets each ``TextPiece`` when it is known. True returns an iterator over them.

    Returns
    -------
    GeneratedText, list[GeneratedText] or Generation
        One text for one prompt, a list for a list. With ``stream=True`` the iterator, whose
        ``results`` has the texts.

    Raises
    ------
    InputError
        An argument is out of its range, the model has no state or no logits, a prompt is longer
        than what can be kept, or the tokenizer is that of another model.
    TvmExtError
        As ``tvm_ext.compile``, ``tvm_ext.load`` and ``CompiledModel.run``.

    Notes
    -----
    A prompt is read in one run, and then each run reads one token. Models that quantise their
    activations in the run give slightly different numbers beside other prompts of a batch.
    """
    prompts, is_one = _prompts(prompt)
    sampling = Sampling(repetition_penalty, temperature, top_k, top_p, seed)
    options = TextOptions(tokenizer, max_new_tokens, sampling, stop, end_tokens, capacity)
    made = start_generation(
        opened(model, is_decoder=True),
        prompts,
        options,
        ModelFiles.beside(paths_of(tokenizer, model)),
        opened(encoder) if encoder is not None else None,
    )
    return finished(made, stream, is_one)


def finished(made: Generation, stream: "OnPiece | Literal[True] | None", is_one: bool) -> Any:
    """The texts, or the iterator over their pieces that was asked for."""
    if stream is True:
        return made
    for piece in made:
        if stream is not None:
            stream(piece)
    return made.results[0] if is_one else made.results


def opened(model: ModelSource, is_decoder: bool = False) -> "SessionModel":
    """The model itself, or the one of a path, compiled or loaded with the defaults.

    Of a decoder the program is compiled that its sessions run.
    """
    if not isinstance(model, str | Path):
        return model
    if Path(model).suffix == ".tvmx":
        from tvm_ext.runtime import load

        return load(model)
    from tvm_ext.api import compile, compile_decoder

    return compile_decoder(model) if is_decoder else compile(model)


def _prompts(prompt: "Prompt | Sequence[Prompt]") -> tuple[list[Prompt], bool]:
    """The prompts of a call, and whether it was given one and no list."""
    if isinstance(prompt, str):
        return [prompt], True
    given: list[Any] = list(prompt)
    if not given:
        raise InputError("no prompt was given; expected a text or its tokens: give one")
    if all(isinstance(one, int | np.integer) for one in given):
        return [[int(one) for one in given]], True
    return given, False


def _tokens(prompt: Prompt, tokenizer: TextTokenizer | None) -> list[int]:
    if not isinstance(prompt, str):
        found = [int(token) for token in prompt]
    elif tokenizer is None:
        raise InputError(
            "a prompt is text and there is no tokenizer; expected the model's tokenizer.json: "
            "give tokenizer=, or give the tokens"
        )
    else:
        found = tokenizer.tokens_of(prompt)
    if not found:
        raise InputError(
            "a prompt has no tokens; expected at least one to begin with: give some text, or the "
            "token with which the model begins"
        )
    return found


def _end_tokens(
    given: "Sequence[int | str] | None", tokenizer: TextTokenizer | None, files: ModelFiles
) -> frozenset[int]:
    if given is None:
        usual = tokenizer.usual_ends() if tokenizer is not None else []
        return frozenset(files.end_tokens or usual)
    found = []
    for token in given:
        if isinstance(token, str) and tokenizer is None:
            raise InputError(
                f"the end token '{token}' is text and there is no tokenizer; expected its number: "
                "give that, or tokenizer="
            )
        is_text = isinstance(token, str) and tokenizer is not None
        found.append(tokenizer.token(token) if is_text else int(token))  # type: ignore
    return frozenset(found)


def _require_vocabulary(
    tokenizer: TextTokenizer | None, prompts: Sequence[Sequence[int]], vocabulary: int | None
) -> None:
    """Refuses tokens for which the model has no logits: they are of another model's tokenizer."""
    if vocabulary is None:
        return
    largest = tokenizer.largest_token if tokenizer is not None else -1
    if largest >= vocabulary:
        raise InputError(
            f"the tokenizer has tokens up to {largest}, and the model has logits for {vocabulary} "
            f"(0 to {vocabulary - 1}); expected the tokenizer of this model: give the "
            "tokenizer.json that came with it"
        )
    wrong = [token for prompt in prompts for token in prompt if not 0 <= token < vocabulary]
    if wrong:
        raise InputError(
            f"a prompt holds token {wrong[0]}; expected tokens from 0 to {vocabulary - 1}, which "
            "the model knows: give such tokens"
        )


def paths_of(*sources: Any) -> list[Path]:
    """Those of the sources that are paths."""
    return [Path(source) for source in sources if isinstance(source, str | Path)]
