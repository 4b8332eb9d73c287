"""A grid of PEs that runs the code of one kernel, with the vendor's libraries as far as it needs.

Of <collectives_2d>: a broadcast along a row or column is done once all PEs of the line have called
it, with the same sender and length; each PE may have one at a time on each axis.
"""

from collections import deque
from itertools import product

import numpy as np
from csl_interpreter import Scope, task_numbers
from csl_values import InvalidProgram, function

_X, _Y = "x", "y"


class _Broadcast:
    def __init__(self, sender, array, words, task):
        self.sender, self.array, self.words, self.task = sender, array, words, task

    @property
    def data(self):
        return self.array.view(np.uint32)[: self.words]


class CslMachine:
    """Runs ``code``, a CslCode, in an order that ``seed`` draws.

    Attributes
    ----------
    grid : (int, int)
        Columns and rows, as the layout says.
    finished : int
        PEs that told the host that they are done.
    messages : int
        Broadcasts that arrived.
    """

    def __init__(self, code, seed=0):
        self.grid = None
        self.finished = 0
        self.messages = 0
        self._code = code
        self._random = np.random.default_rng(seed)
        self._pes = {}
        self._waiting = {}
        self._ready = {}
        modules = {op.sym_name.data: op for op in code.module.body.ops}
        self._program = modules["pe_program"]
        Scope(self, self._layout_library, {}).run(modules["layout"].body.block)
        if set(self._pes) != set(product(range(self.grid[0]), range(self.grid[1]))):
            raise InvalidProgram("not every PE of the rectangle has a program")

    def place(self, x, y, file, parameters):
        if file != "pe_program.csl":
            raise InvalidProgram(f"no file {file}")
        scope = Scope(self, self._libraries_of(x, y), parameters)
        scope.run(self._program.body.block)
        self._pes[x, y] = scope
        self._ready[x, y] = deque()

    def launch(self, entry="compute"):
        """Starts a function on all PEs, in any order, and lets them run until nothing is left."""
        self.finished = 0
        places = list(self._pes)
        self._random.shuffle(places)
        for place in places:
            self._pes[place].call(entry)
        while choices := self._choices():
            choices[self._random.integers(len(choices))]()
        if self.finished != len(self._pes):
            raise InvalidProgram(f"{self.finished} of {len(self._pes)} PEs are done")

    def activate(self, scope, task):
        place = next(place for place, one in self._pes.items() if one is scope)
        self._ready[place].append(task)

    def __call__(self, **inputs):
        """The outputs of one run, by name."""
        for shard in self._code.shards:
            if shard.role == "input":
                self._write(shard, inputs[shard.name])
        self.launch()
        return {s.name: self._read(s) for s in self._code.shards if s.role == "output"}

    def _choices(self):
        tasks = [self._task_runner(place) for place, tasks in self._ready.items() if tasks]
        lines = [self._deliverer(axis, line) for axis, line in self._complete()]
        return tasks + lines

    def _task_runner(self, place):
        def run():
            scope = self._pes[place]
            scope.call(scope.tasks[self._ready[place].popleft()])

        return run

    def _line(self, axis, line):
        columns, rows = self.grid
        if axis == _X:
            return [(x, line) for x in range(columns)]
        return [(line, y) for y in range(rows)]

    def _complete(self):
        for axis, count in ((_X, self.grid[1]), (_Y, self.grid[0])):
            for line in range(count):
                if all((axis, place) in self._waiting for place in self._line(axis, line)):
                    yield axis, line

    def _deliverer(self, axis, line):
        def deliver():
            places = self._line(axis, line)
            calls = [self._waiting.pop((axis, place)) for place in places]
            if len({(call.sender, call.words) for call in calls}) > 1:
                raise InvalidProgram("PEs of one line do not agree on a message")
            sent = calls[calls[0].sender].data.copy()
            for place, call in zip(places, calls, strict=True):
                call.data[:] = sent
                self._ready[place].append(call.task)
            self.messages += 1

        return deliver

    def _layout_library(self, name, settings):
        if name == "<memcpy/get_params>":
            if (settings["width"], settings["height"]) != self._code_grid():
                raise InvalidProgram("host copies are for another rectangle")
            return {"get_params": lambda x: {"first_column": x}}
        if name == "<collectives_2d/params>":
            return {"get_params": self._collective_parameters}
        return self._ids(name)

    def _code_grid(self):
        return self._code.columns, self._code.rows

    def _collective_parameters(self, x, y, resources):
        return {_X: {"axis": _X, "place": x}, _Y: {"axis": _Y, "place": y}, "resources": resources}

    def _ids(self, name):
        if name != "collectives.csl":
            raise InvalidProgram(f"no module {name}")
        return {"resources": {}, **task_numbers(self._code.files[name])}

    def _libraries_of(self, x, y):
        queues = set()

        def module(name, settings):
            if name == "<memcpy/memcpy>":
                return {"unblock_cmd_stream": self._done}
            if name == "<math>":
                return _Functions()
            if name != "<collectives_2d/pe>":
                return self._ids(name)
            if queues & set(settings["queues"]):
                raise InvalidProgram("two libraries share a queue")
            queues.update(settings["queues"])
            return self._collectives(settings["dim_params"], (x, y))

        return module

    def _collectives(self, parameters, place):
        axis, state = parameters["axis"], {"ready": 0}
        if parameters["place"] != place[axis == _Y]:
            raise InvalidProgram("a PE has the parameters of another one")

        def init():
            state["ready"] += 1

        def broadcast(sender, pointer, words, task):
            if state["ready"] != 1:
                raise InvalidProgram("the library is not initialised once")
            if (axis, place) in self._waiting:
                raise InvalidProgram("a message is sent while another one is under way")
            call = _Broadcast(sender, pointer.array, words, task)
            if words > pointer.array.view(np.uint32).size:
                raise InvalidProgram("a message is longer than its array")
            if parameters["place"] != sender:
                # Nobody may read what has not arrived.
                call.array[:] = np.nan
            self._waiting[axis, place] = call

        return {"init": init, "broadcast": broadcast}

    def _done(self):
        self.finished += 1

    def _blocks(self, shard):
        """For each PE that has a part of a tensor, its array and where the part lies."""
        for (x, y), scope in self._pes.items():
            steps = zip(shard.starts, shard.row_steps, shard.column_steps, strict=True)
            starts = [start + y * row + x * column for start, row, column in steps]
            ends = zip(starts, shard.shape, strict=True)
            block = tuple(slice(start, start + size) for start, size in ends)
            yield (x, y), scope.symbols[shard.name], block

    def _write(self, shard, values):
        values = np.asarray(values, shard.dtype)
        assert values.shape == shard.tensor_shape
        for (x, y), array, block in self._blocks(shard):
            array[:] = np.nan
            if shard.row in (None, y) and shard.column in (None, x):
                part = np.zeros(shard.shape, shard.dtype)
                found = values[block]
                part[tuple(slice(size) for size in found.shape)] = found
                array[: part.size] = part.transpose(shard.order).ravel()

    def _read(self, shard):
        values = np.full(shard.tensor_shape, np.nan, shard.dtype)
        for _, array, block in self._blocks(shard):
            shape = [shard.shape[dimension] for dimension in shard.order]
            count = int(np.prod(shape))
            part = array[:count].reshape(shape).transpose(np.argsort(shard.order))
            into = values[block]
            into[...] = part[tuple(slice(size) for size in into.shape)]
        return values


class _Functions:
    def __getitem__(self, name):
        return lambda *arguments: function(name, arguments)
