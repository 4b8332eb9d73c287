"""How a kernel's loops say what runs where on a mesh of processing elements (PEs).

The loops are those of an ordinary kernel, and run on any CPU; these annotations say what they mean
on a mesh. Whoever writes a schedule by hand can set them, and gets its cost.

- ``MESH_AXIS`` on a loop: "row" or "column": each iteration is one row or column of PEs. What is
  below both loops is the program of one PE.
- ``PIPELINE`` on a loop below them: its iterations are steps of a distributed algorithm. 2: while
  one step computes, the messages of the next are under way, in buffers of their own; 1: in turn.
- ``VECTOR`` on a loop: one vector instruction does all its iterations. Without one, it is the
  innermost loop.
- ``COMMUNICATION`` on a block that copies into a buffer of the PE, or that combines partial results
  of several PEs: by which pattern the data come; see ``Pattern``.
- ``GROUP`` beside it: PEs of a group, for patterns in two phases; branches, for a K-tree.
- ``HOME`` followed by a parameter's position, on the root block: where that tensor lies between
  kernels, one word a dimension: "row" or "column" if it is cut into as many equal pieces as the
  mesh has rows or columns, "row/4" for 4 pieces, "-" if it is not cut. Without it, a tensor lies
  where its first reader, or its writer, has it.

Loops of the mesh may be nested: the outer ones then number groups of PEs, and a pattern stays in a
group.
"""

MESH_AXIS = "tvm_ext.mesh"
PIPELINE = "tvm_ext.pipeline"
VECTOR = "tvm_ext.vector"
COMMUNICATION = "tvm_ext.communication"
GROUP = "tvm_ext.group"
HOME = "tvm_ext.home."

ROW = "row"
COLUMN = "column"
WHOLE = "-"


class Pattern:
    """Names of the communication patterns.

    Copies: RESIDENT data lie in the PE already; MULTICAST_ROW and MULTICAST_COLUMN send a tile from
    the PE that has it to all others of its row or column; MULTICAST sends to all PEs; SHIFT_ROW and
    SHIFT_COLUMN hand tiles on around a ring, one place a step; HALO takes the edges of the
    neighbours' shards; GATHER any other copy, each PE's from wherever it lies.

    Combinations of partial results along a row or column: CHAIN, TREE, STAR, TWO_PHASE and K_TREE,
    each with "_row" or "_column" behind its name.
    """

    RESIDENT = "resident"
    MULTICAST_ROW = "multicast_row"
    MULTICAST_COLUMN = "multicast_column"
    MULTICAST = "multicast"
    SHIFT_ROW = "shift_row"
    SHIFT_COLUMN = "shift_column"
    HALO = "halo"
    GATHER = "gather"
    CHAIN = "chain"
    TREE = "tree"
    STAR = "star"
    TWO_PHASE = "two_phase"
    K_TREE = "k_tree"


REDUCTIONS = (Pattern.CHAIN, Pattern.TREE, Pattern.STAR, Pattern.TWO_PHASE, Pattern.K_TREE)
