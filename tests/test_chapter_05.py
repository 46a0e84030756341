"""A fault planted in chapter 05's own kernel makes the cells of Verify print a wrong number.

Each copy differs from the chapter in one place, runs without an exception, and nbval finds the
wrong outputs in exactly the cells that are about that fault.
"""

import planted
import pytest
from planted import Fault

from kernelbook.course import chapters

CHAPTER = chapters.NOTEBOOKS / "05_kv_layouts.ipynb"

# A cell of Verify by something that only it contains.
LENGTHS, ORDERS, INT8 = "and 100 tokens:", "same as contiguous:", "int8, {name}"
TREE, PREFIX, TEXT = "branch to draft", "prefix of 64 read once", "swapped_text"

FAULTS = {
    "page_looked_up_one_off": Fault(
        "token // PAGE",
        "tl.maximum(token // PAGE - 1, 0)",
        (LENGTHS, ORDERS, INT8, TREE, PREFIX, TEXT),
        "shuffled pages of 16, same as contiguous: False",
    ),
    "page_boundary_ignored": Fault(
        "token // PAGE",
        "(tl.min(token, axis=0) + 0 * token) // PAGE",
        (LENGTHS, ORDERS, INT8, TREE, PREFIX, TEXT),
        "pages of 16,  17 and 100 tokens: wrong: relative error",
    ),
    "scale_of_v_forgotten": Fault(
        "p = (p * v_scale).to(v_tile.dtype)",
        "p = p.to(v_tile.dtype)",
        (INT8,),
        "int8, pages of 16: wrong: relative error",
    ),
    "tree_mask_lets_siblings_through": Fault(
        "(draft < 0)[None, :] | (bit == 1)",
        "(draft < 0)[None, :] | (bit >= 0)",
        (TREE,),
        "branch to draft 3, 3 drafts long: wrong: relative error",
    ),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, dict[int, str]]:
    return planted.run(tmp_path_factory.mktemp("faults"), CHAPTER, FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_kernel_turns_its_cells_red(reports, name):
    expected = planted.cells_of(planted.build_and_verify(CHAPTER), FAULTS[name].red)
    assert set(reports[name]) == expected


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows_as_a_wrong_number_and_not_as_an_exception(reports, name):
    words = reports[name].values()
    assert all("caused an exception" not in said for said in words)
    assert any(FAULTS[name].line in said for said in words)
