"""What a scheduled kernel costs on a mesh."""

import tvm

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.hardware.wafer.program_cost import MeshCost, program_cost
from tvm_ext.tuning.mesh_analysis.read_program import read_program


def mesh_cost(mod: tvm.IRModule, mesh: MeshDescription) -> MeshCost:
    """The modelled cost of the kernel "main" of ``mod``, scheduled for a mesh.

    Raises
    ------
    NotReadable
        The loops cannot be read as a program of a mesh.
    MeshLimitError
        It does not fit the mesh, or a pattern of communication has numbers that make no sense.
    """
    cost = program_cost(read_program(mod["main"], mesh=mesh), mesh)
    if cost.refusal:
        raise MeshLimitError(cost.refusal)
    return cost
