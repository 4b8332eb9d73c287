"""Errors of mappings to a mesh."""

from tvm_ext.configs.errors import TvmExtError


class MeshLimitError(TvmExtError):
    """A mapping asks a mesh for more than it has, or for what no mesh has."""
