"""Models as folders for programs in C and C++, which run them on TVM's runtime without Python.

``library_folder`` writes such a folder.
The sources of the folder are here as they are written (``tvmx_model.h``, ``tvmx_model.c``) or with
the model's name to fill in (``*.j2``).
"""
