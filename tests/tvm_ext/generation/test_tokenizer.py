"""Text to tokens, and tokens to pieces of text that never change again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import byte_tokenizer
from tokenizers import Tokenizer

from tvm_ext.errors import InputError
from tvm_ext.generation.tokenizer import GrowingText, TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return TextTokenizer(byte_tokenizer(folder, "cat", specials=["</s>", "<pad>"]))


def pieces(tokenizer: TextTokenizer, text: str, *stops: str) -> tuple[list[str], str, bool]:
    """The pieces of a text whose tokens come one by one, the whole, and whether it was ended."""
    growing, found, is_ended = GrowingText(tokenizer, stops), [], False
    for token in tokenizer.tokens_of(text):
        piece, is_ended = growing.add(token)
        found.append(piece)
        if is_ended:
            break
    return [*found, growing.finish()], growing.text, is_ended


def test_text_comes_back(tokenizer):
    text = "a cat, ein Bär und 你好 😀\n"
    assert tokenizer.text_of(tokenizer.tokens_of(text)) == text
    assert tokenizer.token("cat") in tokenizer.tokens_of(text)


def test_characters_of_several_tokens_are_not_cut(tokenizer):
    found, text, _ = pieces(tokenizer, "né 😀!")
    assert text == "né 😀!"
    assert [piece for piece in found if piece] == ["n", "é", " ", "😀", "!"]


def test_bytes_of_no_character_come_at_the_end(tokenizer):
    growing = GrowingText(tokenizer)
    given = [growing.add(token)[0] for token in tokenizer.tokens_of("x😀")[:-1]]
    assert [*given, growing.finish()] == ["x", "", "", "", "\ufffd"]


def test_special_tokens_are_left_out(tokenizer):
    assert tokenizer.text_of([tokenizer.token("cat"), tokenizer.token("</s>")]) == "cat"
    assert pieces(tokenizer, "a</s>b")[1] == "ab"


def test_special_tokens_of_usual_names_end_a_text(tokenizer):
    assert tokenizer.usual_ends() == [tokenizer.token("</s>")]


def test_a_stop_string_is_cut_off_though_it_comes_in_parts(tokenizer):
    found, text, is_ended = pieces(tokenizer, "one END two", "END")
    assert (text, is_ended) == ("one ", True)
    assert "E" not in "".join(found)


def test_what_looks_like_a_stop_string_is_given_out_after_all(tokenizer):
    found, text, is_ended = pieces(tokenizer, "one ENTER EN", "END")
    assert (text, is_ended) == ("one ENTER EN", False)
    assert "".join(found) == text


def test_the_first_of_several_stop_strings_decides(tokenizer):
    assert pieces(tokenizer, "ab cd", "d", " c")[1] == "ab"
    assert pieces(tokenizer, "cat", "at")[1:] == ("c", True)


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="ab é😀", max_size=12), stop=st.text(alphabet="abé", max_size=3))
def test_pieces_are_the_text_up_to_the_stop_string(tokenizer, text, stop):
    stops = (stop,) if stop else ()
    found, whole, is_ended = pieces(tokenizer, text, *stops)
    assert "".join(found) == whole == (text.partition(stop)[0] if stop else text)
    assert is_ended == (bool(stop) and stop in text)


def test_a_tokenizer_object_is_taken_and_left_as_it_is(tmp_path):
    own = Tokenizer.from_file(str(byte_tokenizer(tmp_path)))
    own.enable_truncation(2)
    assert len(TextTokenizer(own).tokens_of("hello")) == 5
    assert own.truncation is not None


def test_without_a_tokenizer_there_is_no_text():
    growing = GrowingText(None, ["x"])
    assert (growing.add(5), growing.finish(), growing.text) == (("", False), "", "")


def test_files_that_are_no_tokenizer_are_refused(tmp_path):
    with pytest.raises(InputError, match="is not a file"):
        TextTokenizer(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read as a tokenizer"):
        TextTokenizer(tmp_path / "bad.json")
    with pytest.raises(InputError, match="is a int"):
        TextTokenizer(3)


def test_a_token_that_is_not_there_is_refused(tokenizer):
    with pytest.raises(InputError, match="'<none>' is no token"):
        tokenizer.token("<none>")
