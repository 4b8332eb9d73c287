"""The program of a PE in xDSL's csl dialect, and the layout that says which program runs where.

The host starts ``compute`` on all PEs. What follows after messages is in a task that runs once
they are there: a PE never waits. Phase n is the n-th group of steps with messages: ``send_n``
starts the messages of a step, ``step_n`` does the work that they bring the data for.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import arith, csl
from xdsl.dialects.builtin import FunctionType, StringAttr
from xdsl.ir import Block, Region

from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.wafer.csl.body import I16, STRUCT, U16, U32, Body, View
from tvm_ext.wafer.csl.declarations import (
    ARRIVAL_TASKS,
    ARRIVALS,
    COLLECTIVE_PARAMETERS,
    COORDINATES,
    COPY_PARAMETERS,
    FILE,
    STEP_TASK,
    Declarations,
)
from tvm_ext.wafer.csl.kernel import CslSteps, Item, Multicast, PeKernel, Tensor
from tvm_ext.wafer.csl.work import WorkWriter

PROGRAM = "pe_program"
ENTRY = "compute"
_NEXT_STEP = "next_step"


@dataclass(frozen=True)
class PeProgram:
    """A program.

    Attributes
    ----------
    module
        The ``csl.module``.
    lines : tuple[str, ...]
        Lines of PEs that its messages go along: "row", "column".
    bytes : int
        Of all its arrays.
    symbols : dict[Tensor, str]
        The names under which the host finds tensors.
    """

    module: Any
    lines: tuple[str, ...]
    bytes: int
    symbols: Mapping[Tensor, str]


def pe_program(kernel: PeKernel) -> PeProgram:
    """The program that all PEs run.

    Raises NotApplicable when an array is longer than descriptors reach.
    """
    return _Writer(kernel).program()


class _Writer:
    def __init__(self, kernel: PeKernel) -> None:
        self._kernel = kernel
        self._functions: list[Any] = []
        # The messages of one phase, and what follows: (steps, items until the next ones).
        self._phases: list[tuple[CslSteps, list[Item]]] = []
        self._first: list[Item] = []
        for item in kernel.items:
            if isinstance(item, CslSteps) and kernel.waits(item):
                self._phases.append((item, []))
            else:
                (self._phases[-1][1] if self._phases else self._first).append(item)
        self._declared = Declarations(kernel, self._lines())
        self._work = WorkWriter(self._declared)
        if self._phases:
            self._declare_state()

    def program(self) -> PeProgram:
        """The whole program."""
        entry = Body()
        if self._phases:
            self._initialise(entry)
        self._work.write(entry, self._first, {})
        self._begin(entry, 0)
        self._function(ENTRY, entry)
        for number in range(len(self._phases)):
            self._write_phase(number)
        if self._phases:
            self._write_tasks()
        body = self._declared.body
        for function in self._functions:
            body.add(function)
        self._declared.export()
        body.add(csl.SymbolExportOp(ENTRY, FunctionType.from_lists([], [])))
        module = csl_module(PROGRAM, csl.ModuleKind.PROGRAM, body)
        lines = tuple(self._declared.places)
        return PeProgram(module, lines, self._declared.memory.bytes, self._declared.symbols)

    def _lines(self) -> list[str]:
        """Along which lines of PEs there are messages."""
        messages = [message for steps, _ in self._phases for message in steps.messages]
        along = {message.along for message in messages if self._is_sent(message)}
        return [line for line in (ROW, COLUMN) if line in along]

    def _declare_state(self) -> None:
        """Variables: whether libraries are ready, the step and its phase, messages to come."""
        self._ready = self._declared.variable("ready")
        self._step = self._declared.variable("step")
        self._awaited = self._declared.variable("awaited")
        self._phase = self._declared.variable("phase") if len(self._phases) > 1 else None

    def _is_sent(self, message: Multicast) -> bool:
        return self._kernel.pes_along(message.along) > 1

    def _function(self, name: str, body: Body) -> None:
        body.add(csl.ReturnOp())
        self._functions.append(csl.FuncOp(name, ([], None), Region(body.block)))

    def _task(self, name: str, number: int, body: Body) -> None:
        body.add(csl.ReturnOp())
        kind = csl.TaskKind.LOCAL
        region = Region(body.block)
        self._functions.append(csl.TaskOp(name, ([], None), region, task_kind=kind, id=number))

    def _initialise(self, body: Body) -> None:
        """The libraries are initialised once, however often the host starts the program."""
        with body.when(body.compare(body.load(self._ready), body.number(0))) as fresh:
            for library in self._declared.libraries.values():
                fresh.member_call(library, "init")
            fresh.store(self._ready, fresh.number(1))

    def _begin(self, body: Body, number: int) -> None:
        """Goes on with a phase, or tells the host that all is done."""
        if number == len(self._phases):
            body.member_call(self._declared.host, "unblock_cmd_stream")
            return
        if self._phase is not None:
            body.store(self._phase, body.number(number))
        if self._phases[number][0].loop.extent > 1:
            body.store(self._step, body.number(0))
        body.call(f"send_{number}")

    def _write_phase(self, number: int) -> None:
        steps, after = self._phases[number]
        send = Body()
        step = send.load(self._step) if steps.loop.extent > 1 else send.number(0)

        def messages(body: Body, parity: int) -> None:
            self._send(body, steps, step, parity)

        self._by_parity(send, steps, step, messages)
        self._function(f"send_{number}", send)
        work = Body()
        self._write_step(work, number, steps, after)
        self._function(f"step_{number}", work)

    def _write_step(self, body: Body, number: int, steps: CslSteps, after: list[Item]) -> None:
        if steps.loop.extent == 1:
            self._work.write(body, steps.items, {steps.loop.number: body.number(0)})
            self._go_on(body, number, after)
            return
        now = body.load(self._step)
        following = body.add(arith.AddiOp(now, body.number(1)))
        count = body.number(steps.loop.extent)

        def compute(into: Body, parity: int) -> None:
            self._work.write(into, steps.items, {steps.loop.number: now}, parity)

        body.store(self._step, following)
        if steps.overlapped:
            with body.when(body.compare(following, count, "slt")) as unfinished:
                unfinished.call(f"send_{number}")
        self._by_parity(body, steps, now, compute)
        with body.choice(body.compare(following, count)) as (finished, unfinished):
            self._go_on(finished, number, after)
            if not steps.overlapped:
                unfinished.call(f"send_{number}")

    def _go_on(self, body: Body, number: int, after: list[Item]) -> None:
        """What follows a phase."""
        self._work.write(body, after, {})
        self._begin(body, number + 1)

    def _by_parity(
        self, body: Body, steps: CslSteps, step: Any, write: Callable[[Body, int], None]
    ) -> None:
        """Code for even and for odd steps where they use different arrays."""
        if not self._kernel.alternates(steps):
            write(body, 0)
            return
        parity = body.add(arith.RemUIOp(step, body.number(2)))
        with body.choice(body.compare(parity, body.number(0))) as branches:
            for number, branch in enumerate(branches):
                write(branch, number)

    def _send(self, body: Body, steps: CslSteps, step: Any, parity: int) -> None:
        """The messages of one step: each sender first brings its tile to where it is sent from."""
        sent = [message for message in steps.messages if self._is_sent(message)]
        body.store(self._awaited, body.number(len(sent)))
        for message in steps.messages:
            if message not in sent:
                self._work.prepare(body, message, steps.loop.number, step, parity)
                continue
            sender = self._sender(body, message, step)
            if message.copy is not None:
                place = self._declared.places[message.along]
                with body.when(body.compare(place, sender)) as own:
                    self._work.prepare(own, message, steps.loop.number, step, parity)
            self._broadcast(body, message, sender, parity)

    def _sender(self, body: Body, message: Multicast, step: Any) -> Any:
        if not message.per_sender:
            return body.number(message.first_sender)
        sender = step
        if message.per_sender > 1:
            sender = body.add(arith.DivUIOp(step, body.number(message.per_sender)))
        if message.first_sender:
            sender = body.add(arith.AddiOp(sender, body.number(message.first_sender)))
        return sender

    def _broadcast(self, body: Body, message: Multicast, sender: Any, parity: int) -> None:
        array = View(self._declared.memory, parity).array(message.array)
        pointer = self._declared.pointer(array)
        words = self._kernel.tiles[message.array].words
        arrived = f"{ARRIVALS[message.along]}_id"
        body.member_call(
            self._declared.libraries[message.along],
            "broadcast",
            body.add(csl.SignednessCastOp(sender, U16)),
            body.add(csl.PtrCastOp(pointer, csl.PtrType.get(U32, False, False))),
            body.number(words),
            body.member(self._declared.tasks, arrived, I16),
        )

    def _write_tasks(self) -> None:
        for line in self._declared.libraries:
            arrival = Body()
            left = arrival.add(arith.SubiOp(arrival.load(self._awaited), arrival.number(1)))
            arrival.store(self._awaited, left)
            with arrival.when(arrival.compare(left, arrival.number(0))) as all_there:
                all_there.add(csl.ActivateOp(STEP_TASK, csl.TaskKind.LOCAL))
            self._task(ARRIVALS[line], ARRIVAL_TASKS[line], arrival)
        task = Body()
        if self._phase is None:
            task.call("step_0")
        else:
            self._by_phase(task, task.load(self._phase), 0)
        self._task(_NEXT_STEP, STEP_TASK, task)

    def _by_phase(self, body: Body, phase: Any, number: int) -> None:
        """A step of the phase that the program is in; what it calls may begin the next one."""
        if number == len(self._phases) - 1:
            body.call(f"step_{number}")
            return
        with body.choice(body.compare(phase, body.number(number))) as (mine, later):
            mine.call(f"step_{number}")
            self._by_phase(later, phase, number + 1)


def csl_module(name: str, kind: Any, body: Body) -> Any:
    """A ``csl.module``, which is printed as a file of that name."""
    properties = {"kind": csl.ModuleKindAttr(kind), "sym_name": StringAttr(name)}
    return csl.CslModuleOp(regions=[Region(body.block)], properties=properties)


# Which program runs where: the layout of a kernel in xDSL's csl dialect.


LAYOUT = "layout"


def layout(kernel: PeKernel, lines: Iterable[str]) -> Any:
    """The layout as a ``csl.module``: a rectangle of PEs that all have the same program.

    Parameters
    ----------
    kernel : PeKernel
        The kernel.
    lines : iterable of str
        Lines of PEs that messages go along. Each PE gets its place on them as a parameter, and what
        the library of broadcasts needs.
    """
    return _Layout(kernel, list(lines)).module()


class _Layout:
    def __init__(self, kernel: PeKernel, lines: list[str]) -> None:
        self._kernel = kernel
        self._lines = lines
        self._top = Body()
        self._copies = self._import_copies()
        self._collectives: Any = None
        self._resources: Any = None
        if lines:
            self._collectives = self._imported("c2d", "<collectives_2d/params>")
            own = self._imported("broadcasts", FILE)
            self._resources = self._top.member(own, "resources", STRUCT)

    def module(self) -> Any:
        """The whole layout."""
        inside = Body(Block())
        extents = [inside.number(n) for n in (self._kernel.columns, self._kernel.rows)]
        inside.add(csl.SetRectangleOp(operands=extents))
        with inside.loop("x", self._kernel.columns) as (columns, x):
            copies = columns.member_call(self._copies, "get_params", x, result=STRUCT)
            copies.name_hint = "copies"
            with columns.loop("y", self._kernel.rows) as (place, y):
                self._tile(place, x, y, copies)
        self._top.add(csl.LayoutOp(Region(inside.block)))
        return csl_module(LAYOUT, csl.ModuleKind.LAYOUT, self._top)

    def _import_copies(self) -> Any:
        extents = {"width": self._kernel.columns, "height": self._kernel.rows}
        fields = [(name, self._top.number(value)) for name, value in extents.items()]
        settings = self._top.named("size", csl.ConstStructOp(*fields))
        return self._imported("memcpy", "<memcpy/get_params>", settings)

    def _imported(self, name: str, module: str, settings: Any = None) -> Any:
        return self._top.named(name, csl.ImportModuleConstOp(module, settings))

    def _tile(self, body: Body, x: Any, y: Any, copies: Any) -> None:
        """The program of one PE with its parameters."""
        places = {"column": x, "row": y}
        fields = [(COPY_PARAMETERS, copies)]
        fields += [(COORDINATES[line], places[COORDINATES[line]]) for line in self._lines]
        if self._lines:
            unsigned = [body.add(csl.SignednessCastOp(one, U16)) for one in (x, y)]
            parameters = body.member_call(
                self._collectives, "get_params", *unsigned, self._resources, result=STRUCT
            )
            parameters.name_hint = "lines"
            fields.append((COLLECTIVE_PARAMETERS, parameters))
        settings = body.named("parameters", csl.ConstStructOp(*fields))
        body.add(csl.SetTileCodeOp(f"{PROGRAM}.csl", x, y, settings))
