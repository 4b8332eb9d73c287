"""Text to tokens and back, by the library ``tokenizers`` and the file tokenizer.json of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

TokenizerSource: TypeAlias = "str | Path | Tokenizer"
"""A file tokenizer.json, or a ``tokenizers.Tokenizer``."""

# The tokens with which texts end, as the tokenizers of language models spell them. They count only
# where a tokenizer marks them as special.
_USUAL_ENDS = (
    *("</s>", "<eos>", "<end_of_turn>", "<|end|>", "<|end_of_text|>", "<|endoftext|>"),
    *("<|eot_id|>", "<|im_end|>", "<|return|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)


class TextTokenizer:
    """The tokens of texts.

    Parameters
    ----------
    source : path or tokenizers.Tokenizer
        The tokenizer.json of a model. Special tokens are added as it says.

    Raises
    ------
    InputError
        The library ``tokenizers`` is not installed, or the file cannot be read.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self.library, self._name = _loaded(source)
        # A prompt is taken whole, and rows of a batch are padded by whoever knows the model.
        self.library.no_padding()
        self.library.no_truncation()

    @property
    def largest_token(self) -> int:
        """The largest number of a token; -1 without any."""
        return max(self.library.get_vocab(with_added_tokens=True).values(), default=-1)

    def tokens_of(self, text: str, *, with_special: bool = True) -> list[int]:
        """The tokens of a text, with the special ones that the tokenizer adds to a prompt."""
        return list(self.library.encode(text, add_special_tokens=with_special).ids)

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without the special ones."""
        return str(self.library.decode(list(tokens), skip_special_tokens=True))

    def token(self, text: str) -> int:
        """The number of the token that is spelled so.

        Raises
        ------
        InputError
            There is none.
        """
        found = self.library.token_to_id(text)
        if found is None:
            raise InputError(
                f"'{text}' is no token of {self._name}; expected one of its vocabulary: spell it "
                "as the file does"
            )
        return int(found)

    def stream(self) -> "DecodeStream":
        """What decodes the tokens of one text as they come."""
        from tokenizers.decoders import DecodeStream

        return DecodeStream(skip_special_tokens=True)

    def usual_ends(self) -> list[int]:
        """Special tokens whose names say that they end a text."""
        special = self.library.get_added_tokens_decoder()
        return [
            int(number)
            for number, token in special.items()
            if token.special and token.content in _USUAL_ENDS
        ]


class GrowingText:
    """The text of tokens as they come, in pieces that never change again.

    A character whose bytes are shared out among tokens comes with the last of them. Text that may
    be the beginning of a stop string waits until that is known.

    Parameters
    ----------
    tokenizer : TextTokenizer, optional
        What spells the tokens; without it there is no text.
    stops : sequence of str
        Strings at which the text ends. They are not a part of it.

    Attributes
    ----------
    text : str
        What was given out so far.
    """

    def __init__(self, tokenizer: TextTokenizer | None, stops: Sequence[str] = ()) -> None:
        self.text = ""
        self._stops = tuple(stops)
        self._waiting = ""
        self._undecoded: list[int] = []
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream() if tokenizer is not None else None

    def add(self, token: int) -> tuple[str, bool]:
        """The piece of text that is known with this token, and whether a stop string ended it."""
        if self._tokenizer is None or self._stream is None:
            return "", False
        piece = self._stream.step(self._tokenizer.library, token)
        self._undecoded = [*self._undecoded, token] if piece is None else []
        return self._given(piece or "")

    def finish(self) -> str:
        """The rest of the text: what could have become a stop string, and bytes of no character."""
        if self._tokenizer is not None and self._undecoded:
            self._waiting += self._tokenizer.text_of(self._undecoded)
        rest, self._waiting, self._undecoded = self._waiting, "", []
        self.text += rest
        return rest

    def _given(self, piece: str) -> tuple[str, bool]:
        waiting = self._waiting + piece
        ends = [place for stop in self._stops if (place := waiting.find(stop)) >= 0]
        is_ended = bool(ends)
        keep = min(ends) if is_ended else len(waiting) - self._begun(waiting)
        given, self._waiting = waiting[:keep], "" if is_ended else waiting[keep:]
        if is_ended:
            self._undecoded = []
        self.text += given
        return given, is_ended

    def _begun(self, text: str) -> int:
        """How many characters at the end of ``text`` may be the beginning of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


def _loaded(source: TokenizerSource) -> "tuple[Tokenizer, str]":
    """A tokenizer that nobody else has, and what messages call it."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(
            "the package tokenizers is not installed; expected it for reading text: "
            "pip install 'tvm-ext[text]'"
        ) from error
    if isinstance(source, Tokenizer):
        return Tokenizer.from_str(source.to_str()), "the tokenizer"
    if not isinstance(source, str | Path):
        raise InputError(
            f"the tokenizer is a {type(source).__name__}; expected the path of a tokenizer.json or "
            "a tokenizers.Tokenizer: give one of them"
        )
    path = Path(source)
    if not path.is_file():
        raise InputError(
            f"{path} is not a file; expected the tokenizer.json that comes with the model: give "
            "its path"
        )
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8")), str(path)
    # The library raises no class of its own for a file that it cannot read.
    except Exception as error:
        raise InputError(
            f"{path} cannot be read as a tokenizer; expected a tokenizer.json of the library "
            "tokenizers: fetch it again, or convert the tokenizer"
        ) from error
