"""``tvm-ext generate``: the text that a language model makes of a prompt, or of a recording."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import INTERRUPTED, options
from tvm_ext.cli.options import CompileOptions
from tvm_ext.cli.stderr_lines import progress_line
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from tvm_ext.compiled_model import CompiledModel
    from tvm_ext.generation.generate import GeneratedText, Generation, TextOptions
    from tvm_ext.generation.speed import GenerationSpeed
    from tvm_ext.session.decoder_model import SessionModel

EXAMPLE = (
    'Example: tvm-ext generate model.onnx --tokenizer tokenizer.json --prompt "Once upon a time"'
)

_TEXT = "Text"


def generate_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Decoder with keys and values of earlier tokens as inputs: an ONNX model, or a "
            "compiled one (.tvmx).",
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="FILE",
            help="The tokenizer.json of the model. generation_config.json and config.json beside "
            "it or the model are read too. Without it, tokens are printed.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="What the text follows. Repeatable: prompts share a batch where the model can be "
            "told what is padding.",
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", metavar="FILE", help="A file that holds the prompt."),
    ] = None,
    prompt_tokens: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-tokens", metavar="N,...", help="A prompt as numbers of tokens. Repeatable."
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(
            "--encoder",
            metavar="MODEL",
            help="The encoder of an encoder-decoder model. It reads the prompt, or the recording.",
        ),
    ] = None,
    audio: Annotated[
        Path | None,
        typer.Option(
            "--audio",
            metavar="FILE.wav",
            help="A recording whose text is to be written. The prompt is then that of the decoder.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="Longest text, in tokens.")
    ] = 128,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            min=0,
            help="0 takes the most probable token; 1 draws as the model says.",
        ),
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Draw from the K most probable tokens; 0: all.")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            "--top-p",
            help="Draw from the most probable tokens that together reach this probability.",
        ),
    ] = 1.0,
    repetition_penalty: Annotated[
        float,
        typer.Option(
            "--repetition-penalty", help="Above 1: tokens that were there become less likely."
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of what is drawn.")] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End the text ahead of this. Repeatable."),
    ] = None,
    end_token: Annotated[
        list[str] | None,
        typer.Option(
            "--end-token",
            metavar="TOKEN",
            show_default="the model's",
            help="A token that ends the text, by spelling or number; 'none' for no such token. "
            "Repeatable.",
        ),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity",
            min=2,
            show_default="what is needed",
            help="Tokens of a prompt and its text that are kept.",
        ),
    ] = None,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
    records: options.Records = None,
    json_output: options.Json = False,
) -> None:
    """Generate text with a language model, a token a run, and say how fast it came.

    The text goes to stdout as it is made. Tokens a second, and the bytes that a run reads
    beside what this machine can read, go to stderr.
    """
    chosen = CompileOptions.parsed(
        target,
        input_shape,
        opt_level,
        disable_pass,
        pass_config,
        threads,
        records=records,
        pipeline=pipeline,
        precision=precision,
    )
    chosen.require_stated_precision()
    prompts = _prompts(prompt, prompt_file, prompt_tokens)
    from tvm_ext.generation.generate import TextOptions
    from tvm_ext.generation.sampling import Sampling

    text = TextOptions(
        tokenizer,
        max_new_tokens,
        Sampling(repetition_penalty, temperature, top_k, top_p, seed),
        tuple(stop or ()),
        _end_tokens(end_token),
        capacity,
    )
    compiled = chosen.open_decoder(model)
    with progress_line():
        made = _started(compiled, model, text, prompts, _Encoder(encoder, audio, chosen))
    _Printed(compiled, made, text, json_output).run(model)


@dataclass(frozen=True)
class _Encoder:
    """What comes ahead of the decoder."""

    model: Path | None
    audio: Path | None
    options: CompileOptions

    def opened(self) -> "CompiledModel | None":
        """The encoder, compiled as the decoder is."""
        if self.model is None:
            return None
        own = CompileOptions(
            target=self.options.target,
            opt_level=self.options.opt_level,
            threads=self.options.threads,
        )
        return own.open(self.model)


def _started(
    compiled: "SessionModel",
    path: Path,
    text: "TextOptions",
    prompts: "Sequence[str | list[int]]",
    ahead: _Encoder,
) -> "Generation":
    """The texts ahead of the first run."""
    from tvm_ext.generation.generate import paths_of, start_generation
    from tvm_ext.generation.model_files import ModelFiles

    files = ModelFiles.beside(paths_of(text.tokenizer, path))
    encoder = ahead.opened()
    if ahead.audio is None:
        if not prompts:
            raise InputError(
                "no prompt was given; expected --prompt, --prompt-file or --prompt-tokens: give one"
            )
        return start_generation(compiled, prompts, text, files, encoder)
    if encoder is None or len(prompts) > 1:
        found = "without --encoder" if encoder is None else f"with {len(prompts)} prompts"
        raise InputError(
            f"--audio was given {found}; expected the encoder of a speech model and at most one "
            "prompt: give --encoder and one --prompt, or none"
        )
    from tvm_ext.generation.audio import SAMPLES_PER_SECOND, waveform
    from tvm_ext.generation.transcribe import start_transcription

    samples = waveform(ahead.audio, SAMPLES_PER_SECOND)
    return start_transcription(
        compiled, encoder, samples, text, files, prompts[0] if prompts else None
    )


def _prompts(
    texts: Sequence[str] | None, file: Path | None, tokens: Sequence[str] | None
) -> "list[str | list[int]]":
    found: list[str | list[int]] = list(texts or ())
    if file is not None:
        try:
            found.append(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--prompt-file {file} cannot be read as text; expected a file in UTF-8: give "
                "another one"
            ) from error
    return [*found, *map(_numbers, tokens or ())]


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise InputError(
            f"--prompt-tokens is '{text}'; expected numbers such as 1,415,22: give them"
        )
    return list(map(int, parts))


def _end_tokens(given: Sequence[str] | None) -> list[int | str] | None:
    if not given:
        return None
    return [int(one) if one.isdecimal() else one for one in given if one != "none"]


@dataclass
class _Printed:
    """The texts as they are printed, and what they took."""

    compiled: "SessionModel"
    made: "Generation"
    text: "TextOptions"
    as_json: bool

    def run(self, model: Path) -> None:
        """Makes and prints them; ends with its own exit code after an interrupt."""
        try:
            self._stream()
        except KeyboardInterrupt:
            # In this block: an interrupt that is being handled does not come again.
            self._finish(model, read_gbs=None)
            raise typer.Exit(INTERRUPTED) from None
        from tvm_ext.generation.speed import measured_read_gbs

        self._finish(model, measured_read_gbs(self.compiled.report, self.compiled.threads))

    def _stream(self) -> None:
        from tvm_ext.cli.output import print_piece

        is_live = not self.as_json and len(self.made.results) == 1
        for piece in self.made:
            if is_live:
                print_piece(piece.text)

    def _finish(self, model: Path, read_gbs: float | None) -> None:
        from tvm_ext.cli.output import print_json, print_piece, print_text

        results = self.made.results
        if self.as_json:
            speed = self.made.speed.to_dict(read_gbs)
            texts = [one.to_dict() for one in results]
            print_json({"model": str(model), "texts": texts, "speed": speed})
            return
        if len(results) > 1 or self.text.tokenizer is None:
            for number, one in enumerate(results, 1):
                heading = f"{number}: " if len(results) > 1 else ""
                shown = one.text if self.text.tokenizer else ",".join(map(str, one.tokens))
                print_text(f"{heading}{shown}")
        else:
            print_piece("\n")
        for line in speed_lines(self.made.speed, read_gbs, results):
            print(line, file=sys.stderr)


_ENDED_BY = {"interrupted": "Ctrl-C", "context full": "a full context"}
_FULL = (
    "Full        the session, or the model's context, has no room for more tokens; give a larger "
    "--capacity or a shorter prompt"
)


def speed_lines(
    speed: "GenerationSpeed", read_gbs: float | None, results: "Sequence[GeneratedText]"
) -> list[str]:
    """What the texts took, in a few lines for people."""
    from tvm_ext.report.units import format_bytes, format_count, format_percent

    def rate(value: float | None) -> str:
        return f"{value:,.0f} tokens a second" if value is not None else "not measured"

    made = sum(len(one.tokens) for one in results)
    reasons = dict.fromkeys(_ENDED_BY.get(r, r) for r in (one.finish_reason for one in results))
    lines = [
        f"Prompt      {format_count(speed.prompt_tokens, 'token')}, "
        f"{rate(speed.prompt_tokens_per_second)}",
        f"Generation  {format_count(made, 'token')}, {rate(speed.tokens_per_second)}, ended by "
        f"{', '.join(reasons)}",
    ]
    if any(one.finish_reason == "context full" for one in results):
        lines.append(_FULL)
    size, gbs = speed.bytes_per_run, speed.read_gbs
    if size is None or gbs is None:
        return lines
    state = format_bytes(size - speed.weights_bytes)
    parts = f"{format_bytes(speed.weights_bytes)} of weights, {state} of state"
    share = f", {format_percent(gbs / read_gbs)} of the {read_gbs:.1f} measured" if read_gbs else ""
    return [*lines, f"Read        {parts} a run, {gbs:.1f} GB/s{share}"]
