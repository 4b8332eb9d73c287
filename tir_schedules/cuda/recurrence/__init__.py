"""Recurrent layers: all steps in one kernel, the state in shared memory."""
