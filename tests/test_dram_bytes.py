"""The profiler's output is read right in both of its forms, and rows say why counts differ."""

import pytest

from benchmarks import dram_bytes as bench

L2 = 60 * 2**20
LONG = """==PROF== Connected to process 7
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","copy_kernel","Command line","dram__bytes_read.sum","byte","1,073,741,824"
"0","copy_kernel","Command line","gpu__time_duration.sum","ns","498,100"
"1","scores_kernel(int)","Command line","dram__bytes_read.sum","Mbyte","16.5"
"1","scores_kernel(int)","Command line","gpu__time_duration.sum","us","330"
==PROF== Disconnected
"""
WIDE = """printed by the program
"ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum"
"","","Gbyte","usecond"
"0","copy_kernel","1.073741824","498.1"
"1","scores_kernel","n/a","330"
"""


def test_a_row_for_each_metric():
    copy, scores = bench.parse(LONG, bench.METRICS)
    assert copy == {"kernel": "copy_kernel", "dram_read": 2**30, "microseconds": 498.1}
    assert scores == {"kernel": "scores_kernel", "dram_read": 16.5e6, "microseconds": 330}


def test_a_column_for_each_metric():
    copy, scores = bench.parse(WIDE, bench.METRICS)
    assert copy == {"kernel": "copy_kernel", "dram_read": 2**30, "microseconds": 498.1}
    assert scores == {"kernel": "scores_kernel", "microseconds": 330}


def test_no_table_is_no_launch():
    assert bench.parse("==ERROR== no permission\n", bench.METRICS) == []


def test_a_twin_for_another_gpu_is_found():
    launches = [{"kernel": "attention_prefill_hopper_kernel"}, {"kernel": "copy_kernel"}]
    assert bench.of_kernel(launches, "attention_prefill_kernel") is launches[0]
    assert bench.of_kernel(launches, "copy_kernel") is launches[1]
    with pytest.raises(LookupError, match="no launch of row_sum_kernel"):
        bench.of_kernel(launches, "row_sum_kernel")


@pytest.mark.parametrize(
    "side, counted, measured, why",
    [
        ("read", 10**9, 1.09e9, ""),
        ("written", 10**9, 0.92e9, ""),
        ("written", 2**18, 0.0, "too little"),
        ("read", 10**9, 4e9, "left L2"),
        ("written", 10**9, 0.8e9, "still in L2"),
    ],
)
def test_differences_above_a_tenth_are_explained(side, counted, measured, why):
    found = bench.explanation("some_kernel", side, counted, measured, L2)
    assert why in found and bool(found) == bool(why)


def test_the_product_reads_b_once_a_band():
    assert "24 x 50.3 + 50.3 = 1258 MB" in bench.explanation(
        "matmul_kernel", "read", 10**8, 1.26e9, L2
    )


def test_sectors_are_explained():
    assert bench.l2_explanation("read", 3200, {"l2_sectors_read": 100}) == ""
    assert "merged" in bench.l2_explanation("read", 6400, {"l2_sectors_read": 100})
    sectors = {"l2_sectors_written": 900, "sm_sectors_written": 100}
    assert "whole sectors" in bench.l2_explanation("written", 400, sectors)


def test_large_cases_are_large_and_small_ones_the_same_kernels():
    large, small = bench.driver.cases("large"), bench.driver.cases("small")
    assert [case.name for case in large] == [case.name for case in small]
    assert len(large) >= 6
    for case in large:
        assert max(work.bytes for work in case.work.values()) >= 10**9
