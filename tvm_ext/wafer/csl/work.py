"""What one PE computes, as operations of xDSL's csl dialect."""

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects import arith

from tvm_ext.wafer.csl.body import Body
from tvm_ext.wafer.csl.declarations import Declarations
from tvm_ext.wafer.csl.kernel import Assignment, Item, Multicast, Steps
from tvm_ext.wafer.csl.memory import View
from tvm_ext.wafer.csl.scalar_form import ScalarForm
from tvm_ext.wafer.csl.vector_form import VectorForm, has_vector_form


class Work:
    """Writes assignments and the loops around them.

    Parameters
    ----------
    declared : Declarations
        The arrays and libraries.
    """

    def __init__(self, declared: Declarations) -> None:
        self._declared = declared

    def write(
        self, body: Body, items: Sequence[Item], known: Mapping[int, Any], parity: int = 0
    ) -> None:
        """Appends ``items``, which wait for nobody.

        Parameters
        ----------
        body : Body
            Where to.
        items : sequence of Item
            Assignments and loops; steps only where each line of PEs is a single PE.
        known : mapping
            The variables of loops around them, by number.
        parity : int
            0 in even steps and 1 in odd ones.
        """
        for item in items:
            if isinstance(item, Assignment):
                self._assign(body, item, known, parity)
                continue
            with body.loop(f"n{item.loop.number}", item.loop.extent) as (inside, variable):
                if isinstance(item, Steps):
                    for message in item.messages:
                        self.prepare(inside, message, item.loop.number, variable)
                self.write(inside, item.items, {**known, item.loop.number: variable}, parity)

    def prepare(
        self, body: Body, message: Multicast, loop: int, step: Any, parity: int = 0
    ) -> None:
        """Appends what the sender of a message does before: its tile into the array that is sent.

        ``step`` is the value of the loop with the number ``loop``.
        """
        if message.copy is None:
            return
        known = {loop: step}
        if message.per_sender > 1:
            count = body.number(message.per_sender)
            known[message.within] = body.add(arith.RemUIOp(step, count))
        self._assign(body, message.copy, known, parity, joined=True)

    def _assign(
        self,
        body: Body,
        item: Assignment,
        known: Mapping[int, Any],
        parity: int,
        joined: bool = False,
    ) -> None:
        view = View(self._declared.memory, parity)
        if has_vector_form(item, view):
            VectorForm(item, view, known, joined).write(body)
        else:
            ScalarForm(item, view, known, self._declared.math).write(body)
