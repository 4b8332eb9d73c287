"""The list of operators with gradients says what is so."""

import pytest
from cases import all_cases
from gradients_page import PAGE, gradients_page, refusal_of, trainable_case


def _reason(module: str, name: str, operands: int) -> str:
    case = next(one for one in all_cases([module]) if one.name == name)
    model = trainable_case(case, operands)
    assert model is not None
    return refusal_of(model)


def test_one_with_and_one_without() -> None:
    assert _reason("where", "test_where_example", 3) == ""
    assert _reason("scatternd", "test_scatternd_add", 1) == ""
    assert _reason("scatternd", "test_scatternd_multiply", 1) == "the kernel scatter"


@pytest.mark.slow
def test_the_page_is_current() -> None:
    assert PAGE.read_text() == gradients_page()
