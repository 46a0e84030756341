"""The README says what the chapters and the records say."""

from kernelbook import ledger
from kernelbook.course import chapters, readme


def test_it_is_up_to_date():
    assert readme.filled(readme.README.read_text()) == readme.README.read_text()


def test_a_changed_verdict_is_noticed():
    stale = readme.README.read_text().replace("| C02.1 | **true**", "| C02.1 | **false**")
    assert stale != readme.README.read_text()
    assert readme.filled(stale) == readme.README.read_text()


def test_every_verdict_of_every_chapter_is_in_the_table():
    table = readme.verdict_table()
    claims = [v.claim for path in chapters.find() for v in ledger.collect(path)]
    assert len(claims) >= 5
    assert all(f"| {claim} |" in table for claim in claims)


def test_its_figure_exists():
    assert readme.FIGURE.stat().st_size > 10_000
