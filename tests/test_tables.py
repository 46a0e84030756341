import pytest

from kernelbook import tables


def test_names_left_numbers_right():
    text = tables.plain(["kernel", "bytes", "ratio"], [["copy", 1234567, "1.0x"], ["a", None, ""]])
    assert text.splitlines() == [
        "kernel      bytes  ratio",
        "------  ---------  -----",
        "copy    1,234,567   1.0x",
        "a               -",
    ]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="header has 2 cells, a row has 1"):
        tables.plain(["a", "b"], [["x"]])
