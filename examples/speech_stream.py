"""Finds speech in a stream of sound, one window of 32 milliseconds after the other.

Compiles Silero VAD, binds its inputs and outputs to arrays, and feeds it a recording that is made
here: hiss, a synthetic voice that says vowels, a pure tone, and the voice again. The network's
state goes from window to window. Every probability is compared with ONNX Runtime's.

    python examples/speech_stream.py
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from fetch_model import FILES, FetchError, fetch_file
from scipy import signal

import tvm_ext
from tvm_ext.check.reference import ReferenceSession

RATE = 16_000
WINDOW = 512
# The network looks at the end of the window before as well.
CONTEXT = 64
SPEECH_ABOVE = 0.5
CLOSE = 1e-3
# Resonances of the vocal tract, in Hz, for five vowels.
VOWELS = (
    (730, 1090, 2440),
    (530, 1840, 2480),
    (270, 2290, 3010),
    (570, 840, 2410),
    (300, 870, 2240),
)

Step = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]


def syllable(pitch: float, vowel: tuple[int, ...], seconds: float) -> np.ndarray:
    """One vowel: pulses of falling pitch, through a resonance for each formant."""
    times = np.arange(int(seconds * RATE)) / RATE
    phase = np.cumsum(pitch * (1 - 0.25 * times / seconds)) / RATE
    sound = np.diff(np.floor(phase), prepend=0.0) + 0.02 * np.random.default_rng(1).normal(
        size=times.size
    )
    sound = signal.lfilter([1.0], [1.0, -0.9], sound)
    for formant in vowel:
        sound = signal.lfilter(*signal.iirpeak(formant, formant / 90, fs=RATE), sound) + 0.1 * sound
    envelope = np.minimum(1.0, 20 * np.minimum(times, seconds - times))
    return 0.3 * envelope * sound / np.abs(sound).max()


def voice(seconds: float) -> np.ndarray:
    """Syllables with pauses between them, as speech has."""
    pause = np.zeros(int(0.06 * RATE))
    parts, length, count = [], 0, 0
    while length < seconds * RATE:
        said = syllable(
            115 + 12 * (count % 3), VOWELS[count % len(VOWELS)], 0.16 + 0.05 * (count % 2)
        )
        parts += [said, pause]
        length += said.size + pause.size
        count += 1
    return np.concatenate(parts)[: int(seconds * RATE)]


def recording() -> list[tuple[str, bool, np.ndarray]]:
    """The parts of the recording: what each is, whether it is speech, and its samples."""
    hiss = np.random.default_rng(0)
    tone = 0.2 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE)
    parts = [
        ("hiss", False, np.zeros(2 * RATE)),
        ("voice", True, voice(3)),
        ("tone", False, tone),
        ("voice again", True, voice(2)),
    ]
    return [
        (name, speech, (sound + 0.002 * hiss.normal(size=sound.size)).astype("float32"))
        for name, speech, sound in parts
    ]


def windows(sound: np.ndarray) -> Iterator[np.ndarray]:
    """Each whole window with the end of the one before in front of it, shape [1, 576]."""
    padded = np.concatenate([np.zeros(CONTEXT, "float32"), sound])
    for begin in range(0, sound.size - WINDOW + 1, WINDOW):
        yield padded[None, begin : begin + CONTEXT + WINDOW]


def bound_step(model: tvm_ext.CompiledModel) -> Step:
    """One step of the compiled model on arrays that are bound once."""
    inputs = {
        "input": np.zeros((1, CONTEXT + WINDOW), "float32"),
        "state": np.zeros((2, 1, 128), "float32"),
        "sr": np.array(RATE, "int64"),
    }
    binding = model.io_binding(inputs)

    def step(window: np.ndarray, state: np.ndarray) -> tuple[float, np.ndarray]:
        inputs["input"][:] = window
        inputs["state"][:] = state
        out = binding.run()
        return float(out["output"][0, 0]), out["stateN"]

    return step


def reference_step(path: Path) -> Step:
    """The same step in ONNX Runtime, on one thread."""
    session = ReferenceSession(path, threads=1)

    def step(window: np.ndarray, state: np.ndarray) -> tuple[float, np.ndarray]:
        out = session.run({"input": window, "state": state, "sr": np.array(RATE, "int64")})
        return float(out["output"][0, 0]), out["stateN"]

    return step


def listen(step: Step, sound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each window the probability of speech, and the seconds that it took."""
    state = np.zeros((2, 1, 128), "float32")
    probabilities, seconds = [], []
    for window in windows(sound):
        begun = time.perf_counter()
        probability, state = step(window, state)
        seconds.append(time.perf_counter() - begun)
        probabilities.append(probability)
    return np.array(probabilities), np.array(seconds)


def print_parts(parts: list[tuple[str, bool, np.ndarray]], probabilities: np.ndarray) -> bool:
    """One line for each part; whether most windows of each were heard as what they are."""
    right, place = True, 0
    for name, speech, sound in parts:
        # The first windows of a part still hear the one before.
        heard = probabilities[place // WINDOW : (place + sound.size) // WINDOW][6:]
        share = float((heard > SPEECH_ABOVE).mean())
        right = right and (share > 0.5) == speech
        bar = "".join(" .:-=+*#"[min(7, int(8 * value))] for value in heard[::2])
        print(f"  {name:12s} {100 * share:5.1f} % of its windows are speech  |{bar}|")
        place += sound.size
    return right


def main() -> int:
    """Runs the example; 0 when windows agree with ONNX Runtime and speech is told from noise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files are kept")
    folder = parser.parse_args().folder
    name = "silero_vad_16k.onnx"
    try:
        path = fetch_file(name, folder)
    except FetchError as error:
        print(f"error: the model cannot be had: {error}", file=sys.stderr)
        return 2
    print(f"model: {FILES[name].description} (licence {FILES[name].licence})")
    # Windows are too small for a second thread to be worth its start.
    shapes = {"input": [1, CONTEXT + WINDOW], "state": [2, 1, 128]}
    model = tvm_ext.compile(path, input_shapes=shapes, threads=1)

    parts = recording()
    sound = np.concatenate([samples for _, _, samples in parts])
    probabilities, seconds = listen(bound_step(model), sound)
    wanted, their_seconds = listen(reference_step(path), sound)
    print(f"{probabilities.size} windows of 32 ms ({sound.size / RATE:.0f} s of sound):")
    right = print_parts(parts, probabilities)

    ours, theirs = 1e6 * np.median(seconds), 1e6 * np.median(their_seconds)
    print(f"time of a window, median: tvm-ext {ours:.0f} us, ONNX Runtime {theirs:.0f} us")
    print(f"slowest window: {1e3 * seconds.max():.2f} ms of the 32 ms that it lasts")
    print(f"real time: {sound.size / RATE / seconds.sum():.0f} times as fast as it is spoken")
    difference = float(np.abs(probabilities - wanted).max())
    print(f"largest difference from ONNX Runtime over the whole stream: {difference:.1e}")
    passed = right and difference < CLOSE and seconds.mean() < WINDOW / RATE
    print("check passed" if passed else "check FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
