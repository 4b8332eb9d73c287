"""Decoding and reading of prompts by a decoder of Llama's form, beside ONNX Runtime.

Ours is a session. ONNX Runtime gets its best: the fastest of arrays and of values that are bound,
of attention that is spelled out and of GroupQueryAttention, with memory that past and present
share. All run at the same past, in turns in one process. On one thread the time is that of the
processor, so that other programs on the same core do not count.

    python benchmarks/decoding.py
    python benchmarks/decoding.py --storages int4 --past 2048 --threads 2 --prompt 0
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import onnxruntime
from few_rows import Peaks
from llama_model import STORAGES, LlamaForm, llama_model

from tvm_ext.api import compile_decoder
from tvm_ext.hardware.timing import interleaved_seconds, timed
from tvm_ext.session import Session

Program = Callable[[], object]


class Rival:
    """A decoder in ONNX Runtime, run at a past that stays the same."""

    def __init__(self, form: LlamaForm, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self._form = form
        self._session = onnxruntime.InferenceSession(
            llama_model(form).SerializeToString(), options, ["CPUExecutionProvider"]
        )
        self._outputs = [one.name for one in self._session.get_outputs()]

    def programs(self, length: int, past: int) -> dict[str, Program]:
        """Ways to run so many tokens."""
        inputs = self._form.inputs(1, length, past)
        kind = "GroupQueryAttention" if self._form.is_grouped else "spelled out"
        found: dict[str, Program] = {
            f"{kind}, arrays": partial(self._session.run, None, inputs),
            f"{kind}, bound": partial(self._session.run_with_iobinding, self._bound(inputs)),
        }
        if self._form.is_grouped:
            found[f"{kind}, shared memory"] = partial(
                self._session.run_with_iobinding, self._bound(inputs, past + length + 1)
            )
        return found

    def _bound(self, inputs: Mapping[str, np.ndarray], capacity: int = 0) -> onnxruntime.IOBinding:
        """Values in memory of ONNX Runtime's; with a capacity, present is written into past."""
        binding = self._session.io_binding()
        shared: dict[str, onnxruntime.OrtValue] = {}
        for name, array in inputs.items():
            if capacity and name.startswith("past"):
                batch, heads, past, depth = array.shape
                room = np.zeros((batch, heads, capacity, depth), np.float32)
                room[:, :, :past] = array
                array = room
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
            shared[name.replace("past_key_values", "present")] = value
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            if capacity and name in shared:
                binding.bind_ortvalue_output(name, shared[name])
            else:
                binding.bind_output(name, "cpu")
        return binding


def session_at(form: LlamaForm, session: Session, length: int, past: int) -> Program:
    """A run of a session behind so much past, which is there again for the next run."""
    inputs = form.inputs(1, length, past)
    if past:
        session.restore({n: array for n, array in inputs.items() if n.startswith("past")})
    given = {name: array for name, array in inputs.items() if not name.startswith("past")}

    def run() -> object:
        if session.length:
            session.roll_back(past)
        return session.run(given)["logits"]

    return run


def seconds_of(programs: Mapping[str, Program], threads: int, turns: int) -> dict[str, float]:
    """Median seconds of a call of each."""
    taken: dict[str, list[float]] = {name: [] for name in programs}
    if threads > 1:
        timers = [timed(program) for program in programs.values()]
        found = interleaved_seconds(timers, rounds=turns)
        return {n: statistics.median(one) for n, one in zip(programs, found, strict=True)}
    for _ in range(turns):
        for name, program in programs.items():
            begun = time.thread_time()
            program()
            taken[name].append(time.thread_time() - begun)
    return {name: statistics.median(own) for name, own in taken.items()}


def measure(form: LlamaForm, length: int, past: int, threads: int, turns: int) -> None:
    """Prints a row for runs of so many tokens behind so much past."""
    peaks = Peaks.measured(threads)
    model = compile_decoder(llama_model(form), threads=threads)
    session = model.session(past + length, batch=1, last_position=["logits"])
    programs: dict[str, Program] = {"ours": session_at(form, session, length, past)}
    for one in (form, replace(form, is_grouped=True)):
        programs |= Rival(one, threads).programs(length, past)
    for program in programs.values():
        program()
    seconds = seconds_of(programs, threads, turns)
    own = seconds.pop("ours")
    best = min(seconds, key=lambda name: seconds[name])
    state = 2 * 4 * form.layers * form.shared_heads * form.depth * (past + length)
    gbs = (form.weight_bytes() + state) / own / 1e9
    body = form.weights() - form.hidden * form.vocabulary
    # Scores and their products with values, of each row with the keys ahead of it.
    pairs = length * (past + (length + 1) / 2)
    multiplied: float = body * length + form.hidden * form.vocabulary
    multiplied += 2 * pairs * form.layers * form.heads * form.depth
    gflops = 2 * multiplied / own / 1e9
    print(
        f"| {form.storage} | {length} | {past} | {threads} | {1e3 * own:.2f} "
        f"| {seconds[best] / own:.2f} ({best}) | {gbs:.1f} of {peaks.gbs:.1f} "
        f"({100 * gbs / peaks.gbs:.0f} %) | {gflops:.0f} of {peaks.gflops:.0f} "
        f"({100 * gflops / peaks.gflops:.0f} %) |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--storages", nargs="+", choices=STORAGES, default=["float32", "int4"])
    parser.add_argument(
        "--accuracy-level", type=int, default=0, help="of products with 4 bits; 4: of bytes"
    )
    parser.add_argument("--layers", type=int, default=LlamaForm.layers)
    parser.add_argument("--past", type=int, default=128, help="tokens ahead of a decoded one")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt; 0: none")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=10)
    given = parser.parse_args()
    print(
        "| weights | tokens | past | threads | ms | best of ONNX Runtime / ours | GB/s read "
        "| GFLOP/s |"
    )
    print("| --- | ---: | ---: | ---: | ---: | --- | --- | --- |")
    for threads in given.threads:
        for storage in given.storages:
            form = LlamaForm(
                layers=given.layers, storage=storage, accuracy_level=given.accuracy_level
            )
            measure(form, 1, given.past, threads, given.turns)
            if given.prompt:
                measure(form, given.prompt, 0, threads, given.turns)


if __name__ == "__main__":
    main()
