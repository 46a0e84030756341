"""Takes the tallest tile that compiles, spilling or not.

cell: lab03_task6
points: 2
says: this tile spills registers to memory
"""


def best_tile(reports):
    """(block_m, block_n) of the tallest tile that fits without spilling, two programs an SM."""
    fitting = [
        tile
        for tile, report in reports.items()
        if report.refusal is None and report.active_warps >= 2 * report.num_warps
    ]
    return max(fitting, default=None)
