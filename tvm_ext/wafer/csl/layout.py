"""Which program runs where: the layout of a kernel in xDSL's csl dialect."""

from collections.abc import Iterable
from typing import Any

from xdsl.dialects import csl
from xdsl.ir import Block, Region

from tvm_ext.wafer.csl.body import STRUCT, U16, Body
from tvm_ext.wafer.csl.collectives import FILE
from tvm_ext.wafer.csl.declarations import COLLECTIVE_PARAMETERS, COORDINATES, COPY_PARAMETERS
from tvm_ext.wafer.csl.kernel import MeshKernel
from tvm_ext.wafer.csl.pe_program import PROGRAM, csl_module

LAYOUT = "layout"


def layout(kernel: MeshKernel, lines: Iterable[str]) -> Any:
    """The layout as a ``csl.module``: a rectangle of PEs that all have the same program.

    Parameters
    ----------
    kernel : MeshKernel
        The kernel.
    lines : iterable of str
        Lines of PEs that messages go along. Each PE gets its place on them as a parameter, and what
        the library of broadcasts needs.
    """
    return _Layout(kernel, list(lines)).module()


class _Layout:
    def __init__(self, kernel: MeshKernel, lines: list[str]) -> None:
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
