"""Saves a compiled model as one file and loads it again, refusing whatever would not run right.

The file, format 1
------------------
A ZIP archive without compression, so that ``unzip`` can look into it. Its members, in this order:

``manifest.json``
    What the model is and where it runs: see :class:`tvm_ext.artifact.manifest.Manifest`.
``model.so``
    A shared library with the kernels, the program of TVM's virtual machine and the weights.
``report.json``
    How the model was compiled, as text that this package does not look into.

Format 2 is that of a model with host steps. In the place of ``model.so`` it has

``host.onnx``
    The host steps as an ONNX graph, with a node for each call of a compiled part.
``part_0.tvmx``, ``part_1.tvmx``, ...
    The compiled parts, each a saved model of format 1.

Format 3 is that of a model for several devices: it has ``part_0.tvmx`` and so on in that place, the
programs of the devices, and the manifest says which device has which of them.

The archive's comment is the last thing in the file and reads, in ASCII,

    ``tvm-ext model format <N> sha256 <64 hexadecimal digits>``

The digest covers every byte of the file before the digits: members, ZIP headers, central directory
and the first words of the comment. So a flipped byte anywhere, a cut, and bytes added at either end
are noticed. Every later format keeps the words ``tvm-ext model format <N>``, so that an old reader
can name the format it cannot read.

Time stamps inside the archive are fixed: the same content makes the same bytes, but for the moment
of creation that the manifest names.

The checksums find damage, not malice. A saved model is a program: load only what you trust.
"""

from tvm_ext.artifact.archive import LoadedArtifact, read_artifact, write_artifact
from tvm_ext.artifact.library import export_library_bytes
from tvm_ext.artifact.manifest import Manifest, PartRecord, TargetRecord, VersionsRecord

__all__ = [
    "LoadedArtifact",
    "Manifest",
    "PartRecord",
    "TargetRecord",
    "VersionsRecord",
    "export_library_bytes",
    "read_artifact",
    "write_artifact",
]
