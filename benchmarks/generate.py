"""Texts of a language model beside ONNX Runtime: the same tokens, and tokens a second in turns.

Tokens are compared one by one behind the same beginning: where the greedy tokens differ, the two
best logits of ONNX Runtime have to be closer than --bound, and ours goes on behind the other's.

    python benchmarks/generate.py model.onnx --tokenizer tokenizer.json --float32
    python benchmarks/generate.py decoder.onnx --encoder encoder.onnx --start 1 --tokens 40

With --float32, products of quantised activations are done in float32 in both programs, with the
same weights: the rounding of activations to 8 bits makes steps of which the last bit of a float
decides.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from generate_float import in_float32

import tvm_ext
from tvm_ext.generation.audio import SAMPLES_PER_SECOND, log_mel_spectrum
from tvm_ext.generation.generate import Generation, Limits
from tvm_ext.generation.model_files import ModelFiles
from tvm_ext.generation.sampling import Sampling
from tvm_ext.generation.tokenizer import TextTokenizer
from tvm_ext.generation.transcribe import encoded_audio

PROMPTS = (
    "Once upon a time there was a small house by the sea.",
    "The capital of France is",
    "def fibonacci(n):",
    "Why is the sky blue?",
    "Write a short poem about the autumn.",
    "1, 2, 3, 4,",
    "Please explain how a bicycle stays upright.",
    "The recipe needs two eggs, flour and",
    "Dear Sir or Madam,",
    "A list of five animals:",
)
# What ONNX Runtime's threads wait busily for after a run, in seconds.
_SETTLE_SECONDS = 0.03


@dataclass
class Reference:
    """A decoder in ONNX Runtime, with its state fed back by hand."""

    session: onnxruntime.InferenceSession
    fixed: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = [one.name for one in self.session.get_outputs()]
        self.known = {one.name: one for one in self.session.get_inputs()}
        self.start()

    def start(self) -> None:
        """Forgets all tokens."""
        self.length = 0
        self.past = {
            name: np.zeros(
                [n if isinstance(n, int) else int(k == 0) for k, n in enumerate(one.shape)],
                np.float32,
            )
            for name, one in self.known.items()
            if name.startswith("past")
        }

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits behind these tokens, which follow those before."""
        total = self.length + len(tokens)
        feed = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self.length, total)[None],
            "use_cache_branch": np.array([self.length > 0]),
            **self.fixed,
            **self.past,
        }
        found = self.session.run(None, {name: feed[name] for name in self.known})
        for name, array in zip(self.names, found, strict=True):
            if name.startswith("present") and array.size:
                self.past[name.replace("present", "past_key_values")] = array
        self.length = total
        return np.asarray(found[self.names.index("logits")])[0, -1]

    def greedy(self, prompt: Sequence[int], count: int) -> Iterator[tuple[int, float]]:
        """The best token of each step, and how far its logit is above the second."""
        self.start()
        read = list(prompt)
        for _ in range(count):
            logits = self.logits(read)
            second, best = np.partition(logits, -2)[-2:]
            read = [int(logits.argmax())]
            yield read[0], float(best - second)


def _first_shape(shape: Sequence[int | str]) -> list[int]:
    """One text, and nothing of it."""
    return [n if isinstance(n, int) else int(axis == 0) for axis, n in enumerate(shape)]


def ours(
    model: tvm_ext.CompiledModel,
    prompt: Sequence[int],
    count: int,
    encoded: dict[str, np.ndarray] | None = None,
) -> Generation:
    """A greedy text of ours that no token ends."""
    return Generation(model, [list(prompt)], None, Sampling(), Limits(count), ModelFiles(), encoded)


def finish(made: Generation) -> list[int]:
    for _ in made:
        pass
    return list(made.results[0].tokens)


def compare(
    model: tvm_ext.CompiledModel,
    prompt: Sequence[int],
    wanted: Sequence[tuple[int, float]],
    encoded: dict[str, np.ndarray] | None = None,
) -> list[tuple[int, float]]:
    """Places at which our token is another one, with the distance of the two best logits there."""
    tokens = [token for token, _ in wanted]
    differences: list[tuple[int, float]] = []
    done = 0
    while done < len(tokens):
        found = finish(ours(model, [*prompt, *tokens[:done]], len(tokens) - done, encoded))
        same = next(
            (n for n, (a, b) in enumerate(zip(found, tokens[done:], strict=True)) if a != b), None
        )
        if same is None:
            break
        differences.append((done + same, wanted[done + same][1]))
        done += same + 1
    return differences


def speeds(
    model: tvm_ext.CompiledModel,
    reference: Reference,
    prompts: Sequence[Sequence[int]],
    count: int,
    rounds: int,
    encoded: dict[str, np.ndarray] | None = None,
) -> tuple[float, float, float, float]:
    """Prompt and generation tokens a second of ours and of ONNX Runtime, measured in turns."""
    taken: dict[str, list[float]] = {"p": [], "g": [], "rp": [], "rg": []}
    for _ in range(rounds):
        for prompt in prompts:
            made = ours(model, prompt, count, encoded)
            finish(made)
            taken["p"].append(len(prompt) / made.speed.prompt_seconds)
            taken["g"].append(made.speed.new_tokens / made.speed.seconds)
            time.sleep(_SETTLE_SECONDS)
            begun = time.perf_counter()
            steps = reference.greedy(prompt, count)
            next(steps)
            middle = time.perf_counter()
            rest = sum(1 for _ in steps)
            taken["rp"].append(len(prompt) / (middle - begun))
            taken["rg"].append(rest / (time.perf_counter() - middle))
            time.sleep(_SETTLE_SECONDS)
    p, g, rp, rg = (statistics.median(one) for one in taken.values())
    return p, g, rp, rg


def sound(seconds: float, seed: int) -> np.ndarray:
    """A tone, a chirp and noise with the resonances and the syllables of speech."""
    random = np.random.default_rng(seed)
    t = np.arange(int(seconds * SAMPLES_PER_SECOND)) / SAMPLES_PER_SECOND
    third = seconds / 3
    noise = random.standard_normal(t.size)
    spectrum, frequencies = np.fft.rfft(noise), np.fft.rfftfreq(t.size, 1 / SAMPLES_PER_SECOND)
    formants = sum(np.exp(-(((frequencies - f) / 120) ** 2)) for f in (500, 1500, 2500))
    speech = np.fft.irfft(spectrum * formants, t.size) * np.clip(np.sin(8 * np.pi * t), 0, None)
    parts = [
        0.3 * np.sin(2 * np.pi * 220 * t) * (t < third),
        0.3 * np.sin(2 * np.pi * (200 + 300 * t) * t) * ((t >= third) & (t < 2 * third)),
        speech * (t >= 2 * third),
    ]
    return sum(parts).astype(np.float32)


def _session(source: Path | bytes, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    given = source if isinstance(source, bytes) else str(source)
    return onnxruntime.InferenceSession(given, options, ["CPUExecutionProvider"])


def _jobs(arguments: argparse.Namespace) -> list[list[int]]:
    if arguments.start:
        return [arguments.start] * arguments.prompts
    tokenizer = TextTokenizer(arguments.tokenizer)
    texts = [arguments.template.replace("{}", one) for one in PROMPTS[: arguments.prompts]]
    return [tokenizer.tokens_of(text.replace("\\n", "\n")) for text in texts]


def _encoded(
    arguments: argparse.Namespace, decoder: tvm_ext.CompiledModel, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The states of both encoders for the same sound: ours for our decoder, the other's for it."""
    if arguments.encoder is None:
        return {}, {}
    samples = sound(3.0, seed)
    encoder = tvm_ext.compile(arguments.encoder, threads=arguments.threads[0])
    mine = encoded_audio(encoder, decoder, samples)
    other = _session(arguments.encoder, arguments.threads[0])
    (reads,) = other.get_inputs()
    feed = samples[None] if len(reads.shape) == 2 else log_mel_spectrum(samples)[None]
    (name,) = mine
    return mine, {name: other.run(None, {reads.name: feed})[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--template", default="{}", help="what stands around a prompt, as {}")
    parser.add_argument("--encoder", type=Path, help="the encoder of a speech model")
    parser.add_argument("--start", type=int, nargs="+", help="tokens to begin with, for all texts")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many texts")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each text")
    parser.add_argument("--bound", type=float, default=1e-3, help="logits that count as equal")
    parser.add_argument("--float32", action="store_true", help="no quantised activations")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=1, help="turns that are timed; 0: none")
    arguments = parser.parse_args()
    loaded = onnx.load(arguments.model)
    source = in_float32(loaded) if arguments.float32 else loaded
    jobs = _jobs(arguments)
    model = tvm_ext.compile(source, threads=arguments.threads[0])
    print(f"| text | tokens | differ | distance of logits there | bound {arguments.bound:g} |")
    for number, prompt in enumerate(jobs):
        mine, theirs = _encoded(arguments, model, number)
        reference = Reference(_session(source.SerializeToString(), 1), theirs)
        wanted = list(reference.greedy(prompt, arguments.tokens))
        found = compare(model, prompt, wanted, mine)
        largest = max((distance for _, distance in found), default=0.0)
        verdict = "held" if largest <= arguments.bound else "NOT HELD"
        print(
            f"| {number + 1} | {len(wanted)} | {len(found)} | {largest:.2g} | {verdict} |",
            flush=True,
        )
    for threads in arguments.threads if arguments.rounds else ():
        mine, theirs = _encoded(arguments, model, 0)
        measured = tvm_ext.compile(source, threads=threads)
        reference = Reference(_session(source.SerializeToString(), threads), theirs)
        p, g, rp, rg = speeds(
            measured, reference, jobs[:3], min(arguments.tokens, 64), arguments.rounds, mine
        )
        print(
            f"{threads} threads: prompts {p:,.0f} tokens a second, {p / rp:.2f} of ONNX Runtime; "
            f"generation {g:,.0f}, {g / rg:.2f} of ONNX Runtime",
            flush=True,
        )


if __name__ == "__main__":
    main()
