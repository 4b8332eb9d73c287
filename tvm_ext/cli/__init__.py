"""The command line ``tvm-ext``: one command a file, each a thin parser over one function.

Exit codes: 0 success; 1 the thing asked about is not so (a check that differs); 2 bad usage or bad
input; 3 a defect of this package; 130 interrupted; 141 whoever read the output went away.
Errors are one line on stderr, with a traceback only under ``--debug``.
"""

BAD_INPUT = 2
INTERNAL_ERROR = 3
INTERRUPTED = 130
READER_GONE = 141
