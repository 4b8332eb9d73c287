"""References that outlive the interpreter's own clean-up."""

import ctypes


def keep_for_ever(*objects: object) -> None:
    """Takes references that are never given back.

    Without a context freeing device memory fails, in a destructor, which would end the process.
    """
    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
