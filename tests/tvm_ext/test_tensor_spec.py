"""Which sizes are dynamic, and what is typed to freeze them."""

from tvm_ext.tensor_spec import freezing_hint, listed, symbolic_names, symbolic_places

SHAPES = {"x": ["N", 3, "H", "W"], "mask": ["N", "mask_1"], "fixed": [2]}


def test_dynamic_dimensions_and_where_they_are():
    assert symbolic_names(SHAPES) == ["N", "H", "W", "mask_1"]
    assert symbolic_places(SHAPES, ["H", "mask_1"]) == "H of input 'x' and axis 1 of input 'mask'"


def test_a_hint_is_what_can_be_typed():
    hint = freezing_hint(SHAPES, ["N"])
    assert hint.startswith("freeze N of input 'x', for example ")
    assert "--input-shape x=1,3,224,224 --input-shape mask=1,16" in hint
    assert '(Python: input_shapes={"x": [1, 3, 224, 224], "mask": [1, 16]})' in hint
    assert "--input-shape 'a b=1'" in freezing_hint({"a b": ["N"]})


def test_nothing_open_needs_no_hint():
    assert freezing_hint({"fixed": [2]}) == ""
    assert freezing_hint(SHAPES, ["unknown"]) == ""


def test_a_list_of_many_is_cut():
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"
