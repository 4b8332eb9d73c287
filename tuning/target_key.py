"""What makes two TVM targets the same machine, and a target's name for people."""

import json
from collections.abc import Mapping
from typing import Any

from tvm_ext.tuning.candidate import plain_json

# Notes on a target that change nothing about the code of a kernel or its time.
_NOTES = ("tag", "keys", "host")


def target_key(target: Mapping[str, Any]) -> str:
    """Text that is equal for the attributes of targets that are the same machine.

    Left out are names ("tag", "keys"), the CPU beside a GPU ("host"), and the "feature."
    attributes, which TVM derives from the others.
    """
    kept = {
        str(key): plain_json(value)
        for key, value in target.items()
        if key not in _NOTES and not str(key).startswith("feature.")
    }
    if isinstance(kept.get("mattr"), list):
        kept["mattr"] = sorted(map(str, kept["mattr"]))
    return json.dumps(kept, sort_keys=True)


def target_text(target: Mapping[str, Any]) -> str:
    """The target in a few words, such as "znver4, 8 cores" or "cuda sm_90a"."""
    kind = str(target.get("kind", "?"))
    model = str(target.get("mcpu") or target.get("arch") or "")
    text = model if model and kind == "llvm" else f"{kind} {model}".strip()
    cores = target.get("num-cores")
    if isinstance(cores, int):
        text += f", {cores} core{'s' * (cores != 1)}"
    return text
