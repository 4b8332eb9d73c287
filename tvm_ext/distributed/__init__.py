"""One model on several processes: its programs, the processes that run them, and what these
exchange.

``relay_passes.spmd_partition`` makes the programs. On one host TVM's Disco starts the processes and
hands them their calls; under ``mpiexec`` MPI does.
"""
