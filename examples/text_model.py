"""Finds the answer to a question among sentences, by what they mean and not by common words.

Compiles all-MiniLM-L6-v2 once for any number of sentences of any length, turns sentences into
vectors with the model's own tokenizer, and prints which sentence is nearest to each question.
Every vector is compared with ONNX Runtime's, for batches of several lengths.

    python examples/text_model.py
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from fetch_model import FILES, FetchError, fetch_file
from minilm import build_minilm

import tvm_ext
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.hardware.timing import interleaved_milliseconds

try:
    from tokenizers import Tokenizer
except ImportError:
    print(
        "error: the package tokenizers is not installed; expected it for reading text: "
        "pip install tokenizers",
        file=sys.stderr,
    )
    sys.exit(2)

CLOSE = 1e-4
LONGEST = 256
SENTENCES = (
    "The train to the coast leaves at nine in the morning.",
    "Preheat the oven and bake the bread for forty minutes.",
    "A compiler turns a program into instructions of a machine.",
    "The patient should take two tablets after each meal.",
    "Interest on the loan is due at the end of every month.",
    "Heavy rain and strong winds are expected on the weekend.",
)
# Each with the number of the sentence that answers it; they share hardly a word.
QUESTIONS = (
    ("When can I travel to the sea?", 0),
    ("How long does a loaf need in the heat?", 1),
    ("What translates source code?", 2),
    ("How is this medicine to be swallowed?", 3),
    ("When do I have to pay the bank?", 4),
    ("Do I need an umbrella on Saturday?", 5),
)


def encode(tokenizer: Tokenizer, sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """Numbers of tokens and the mask of padding, int64[batch, length of the longest]."""
    encoded = tokenizer.encode_batch(list(sentences))
    return {
        "input_ids": np.array([one.ids for one in encoded], "int64"),
        "attention_mask": np.array([one.attention_mask for one in encoded], "int64"),
    }


def load_tokenizer(path: Path) -> Tokenizer:
    """The model's tokenizer, which pads a batch to its longest sentence."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()
    return tokenizer


def print_answers(questions: np.ndarray, sentences: np.ndarray) -> int:
    """Prints the nearest sentence to each question; how many are the right ones."""
    nearness = questions @ sentences.T
    right = 0
    for (question, answer), row in zip(QUESTIONS, nearness, strict=True):
        best, second = np.argsort(-row)[:2]
        right += int(best == answer)
        print(f"  {question}")
        print(f"    {row[best]:.2f}  {SENTENCES[best]}")
        print(f"    {row[second]:.2f}  {SENTENCES[second]}")
    return right


def main() -> int:
    """Runs the example; 0 when all questions are answered right and all vectors agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files are kept")
    folder = parser.parse_args().folder
    names = ("minilm_l6_v2.safetensors", "minilm_l6_v2_tokenizer.json")
    try:
        weights, words = (fetch_file(name, folder) for name in names)
    except FetchError as error:
        print(f"error: the model cannot be had: {error}", file=sys.stderr)
        return 2
    print(f"model: {FILES[names[0]].description} (licence {FILES[names[0]].licence})")
    path = build_minilm(weights, folder / "minilm_l6_v2.onnx")
    model = tvm_ext.compile(path)
    print(f"compiled once for {', '.join(spec.describe() for spec in model.inputs)}")

    tokenizer = load_tokenizer(words)
    with_ort = ReferenceSession(path, threads=int(model.report.target["cores"]))
    batches = {
        "the sentences": encode(tokenizer, SENTENCES),
        "the questions": encode(tokenizer, [question for question, _ in QUESTIONS]),
        "one question": encode(tokenizer, [QUESTIONS[0][0]]),
        "one long text": encode(tokenizer, [" ".join(SENTENCES)]),
    }
    vectors, worst = {}, 0.0
    for name, inputs in batches.items():
        vectors[name] = model.run(inputs)["vector"]
        difference = float(np.abs(vectors[name] - with_ort.run(inputs)["vector"]).max())
        worst = max(worst, difference)
        ours, theirs = interleaved_milliseconds(
            partial(model.run, inputs), partial(with_ort.run, inputs), seconds=1.5
        )
        rows, length = inputs["input_ids"].shape
        print(
            f"  {name:14s} {rows} x {length:2d} tokens: tvm-ext {ours:.1f} ms, ONNX Runtime "
            f"{theirs:.1f} ms ({theirs / ours:.2f}x), difference {difference:.1e}"
        )
    print("the two nearest sentences to each question, with the cosine of the angle between them:")
    right = print_answers(vectors["the questions"], vectors["the sentences"])
    print(f"{right} of {len(QUESTIONS)} questions are answered by the nearest sentence")
    passed = right == len(QUESTIONS) and worst < CLOSE
    print("check passed" if passed else "check FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
