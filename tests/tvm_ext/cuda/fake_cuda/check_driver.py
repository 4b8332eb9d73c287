"""A model compiled and run where the driver cannot be used."""

from use_fake import chain, compiled, error_of, rand

print(error_of(compiled(chain()).run, {"x": rand(4, 8)}))
