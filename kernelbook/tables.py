"""Plain-text tables: names to the left, numbers to the right, columns as wide as they need."""

from collections.abc import Sequence


def cell(value) -> str:
    """Integers with thousands separators, a missing value as "-", everything else as it is."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def plain(header: Sequence[str], rows: Sequence[Sequence], left: int = 1) -> str:
    """The table as text. The first `left` columns are aligned left, the others right.

    Raises ValueError for a row that is longer or shorter than the header.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"the header has {len(header)} cells, a row has {len(row)}: {row}")
    table = [list(header), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]

    def line(row):
        aligned = [
            text.ljust(width) if i < left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(aligned).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(table[0]), rule, *map(line, table[1:])])
