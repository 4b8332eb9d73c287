"""A simulator of the fabric that knows of no closed form: programs, an engine, and schedules."""
