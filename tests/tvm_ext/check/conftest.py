"""What the tests of this folder share."""

import pytest

import tvm_ext
from tvm_ext.passes import registry


@pytest.fixture
def user_pass():
    """Registers passes for one test."""
    names = []

    def register(function, **options):
        name = options.setdefault("name", function.__name__)
        tvm_ext.register_pass(function, **options)
        names.append(name)

    yield register
    for name in names:
        registry.remove(name)
