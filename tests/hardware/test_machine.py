"""What holds for the description of any machine."""

import pytest
from pydantic import ValidationError

from tvm_ext.configs.errors import TargetError
from tvm_ext.hardware.targets import resolve_target


@pytest.mark.parametrize(
    ("preset", "dtype", "lanes"),
    [
        ("avx512", "float32", 16),
        ("avx512", "int8", 64),
        ("avx2", "float64", 4),
        ("aarch64-neon", "float16", 8),
        ("nvidia-a100", "float16", 8),
    ],
)
def test_vector_lanes(preset, dtype, lanes):
    assert resolve_target(preset).vector_lanes(dtype) == lanes


@pytest.mark.parametrize("preset", ["avx2", "nvidia-a100"])
def test_no_machine_has_zero_cores(preset):
    with pytest.raises(TargetError, match="with 0 cores"):
        resolve_target(preset).with_cores(0)


@pytest.mark.parametrize("preset", ["avx2", "nvidia-a100"])
def test_read_only_and_hashable(preset):
    description = resolve_target(preset)
    with pytest.raises(ValidationError, match="frozen"):
        description.name = "other"
    assert len({description, description.model_copy()}) == 1
    assert hash(description) != hash(description.with_cores(1))


@pytest.mark.parametrize("preset", ["avx2", "wse2"])
def test_tf32_is_for_tensor_cores(preset):
    with pytest.raises(TargetError, match=f"target '{preset}' is not a GPU; expected a GPU"):
        resolve_target(preset).with_tf32()
