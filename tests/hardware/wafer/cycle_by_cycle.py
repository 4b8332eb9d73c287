"""The simulator's model once more, in the plainest way: one wavelet and one cycle at a time."""

import random
from collections import defaultdict

import numpy as np

from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.hardware.wafer.simulator.engine import QUEUE_WORDS
from tvm_ext.hardware.wafer.simulator.program import Program, neighbour

UP, DOWN = 4, 5


class CycleByCycle:
    """Ends of the tasks of a program without turns."""

    def __init__(self, mesh: WaferDescription, program: Program) -> None:
        self.ramp, self.hop = mesh.ramp_cycles, mesh.hop_cycles
        self.room = max(QUEUE_WORDS, self.ramp)
        self.program = program
        self.next_word = [0] * len(program.tasks)
        self.ends: dict[int, int] = {}
        # Wavelets on arrival at a task, and those that wait at a ramp or link with their time.
        self.arrived: dict[tuple[int, int], int] = {}
        self.waiting: dict[object, list[tuple[int, int, int, int]]] = defaultdict(list)
        self.before_queue: list[tuple[int, int, int, int]] = []
        self.receiver = {
            (task.received, task.place): number
            for number, task in enumerate(program.tasks)
            if task.received is not None
        }

    def task_ends(self) -> np.ndarray:
        now = 0
        while len(self.ends) < len(self.program.tasks):
            for number in range(len(self.program.tasks)):
                self.run_task(number, now)
            self.let_in()
            for server, wavelets in list(self.waiting.items()):
                there = [wavelet for wavelet in wavelets if wavelet[0] <= now]
                if there:
                    first = min(there)
                    wavelets.remove(first)
                    self.pass_server(server, *first[1:], now)
            now += 1
            assert now < 10_000
        return np.array([self.ends[number] for number in range(len(self.program.tasks))])

    def earliest(self, number: int) -> int | None:
        after = self.program.tasks[number].after
        if any(other not in self.ends for other in after):
            return None
        return max((self.ends[other] for other in after), default=0)

    def run_task(self, number: int, now: int) -> None:
        task, word = self.program.tasks[number], self.next_word[number]
        earliest = self.earliest(number)
        if earliest is None or earliest > now or word == task.words:
            return
        if task.received is not None and self.arrived.get((number, word), now + 1) > now:
            return
        self.next_word[number] += 1
        if task.sent is not None:
            self.waiting[task.place, UP].append((now + 1, task.sent, word, -1))
        if word + 1 == task.words:
            self.ends[number] = now + 1

    def let_in(self) -> None:
        for wavelet in list(self.before_queue):
            time, stream, word, receiver = wavelet
            earliest = self.earliest(receiver)
            if word >= self.room and earliest is None:
                continue
            self.before_queue.remove(wavelet)
            if word >= self.room and self.program.tasks[receiver].after:
                time = max(time, earliest + word - self.room)
            place = self.program.tasks[receiver].place
            self.waiting[place, DOWN].append((time, stream, word, receiver))

    def pass_server(self, server, stream: int, word: int, at: int, now: int) -> None:
        """``at`` is the branch of the route, -1 before the first, or the task behind a ramp."""
        place, kind = server
        if kind == DOWN:
            self.arrived[at, word] = now + self.ramp
            return
        time = now + (self.ramp if kind == UP else self.hop)
        route = self.program.streams[stream].route
        for index, branch in enumerate(route.branches):
            if branch.parent == at:
                self.waiting[branch.place, branch.direction].append((time, stream, word, index))
        here = place if kind == UP else neighbour(place, kind)
        for target, end in route.targets:
            if end == at and target == here:
                self.before_queue.append((time, stream, word, self.receiver[stream, target]))


def random_program(seed: int) -> Program:
    """Streams between PEs of a small grid, whose tasks wait for earlier ones of their PEs."""
    rng = random.Random(seed)
    rows, columns = rng.randint(1, 4), rng.randint(2, 5)
    places = [(row, column) for row in range(rows) for column in range(columns)]
    program = Program(rows, columns)
    tasks_at: dict[tuple[int, int], list[int]] = defaultdict(list)
    to_take: dict[tuple[int, int], list[int]] = defaultdict(list)

    def some_before(place):
        return [task for task in tasks_at[place][-3:] if rng.random() < 0.4]

    for colour in range(rng.randint(2, 14)):
        source = rng.choice(places)
        others = [place for place in places if place != source]
        targets = rng.sample(others, rng.randint(1, min(3, len(others))))
        forwarded = to_take[source].pop() if to_take[source] and rng.random() < 0.5 else None
        words = rng.randint(1, 12)
        if forwarded is not None:
            words = program.streams[forwarded].words
        stream = program.stream(source, targets, words, colour)
        if forwarded is None:
            task = program.send(stream, some_before(source))
        else:
            task = program.forward(forwarded, stream, some_before(source))
        tasks_at[source].append(task)
        for target in targets:
            to_take[target].append(stream)
        for place in places:
            if to_take[place] and rng.random() < 0.6:
                taken = to_take[place].pop(0)
                tasks_at[place].append(program.receive(place, taken, some_before(place)))
    for place in places:
        for taken in to_take[place]:
            tasks_at[place].append(program.receive(place, taken, some_before(place)))
    return program
