"""Configuration data (TOML): target presets and pipelines."""

if __name__ != "tvm_ext.configs":
    raise ImportError("import this package as tvm_ext.configs, not as " + __name__)
