"""Code that nests deep is edited or refused in a sentence; Python's limits are as before."""

from __future__ import annotations

import sys
import threading

import pytest
from plans import check_refused, check_transformed, plan

DEEP = {
    "elif": "if y == 0:\n    pass\n" + "elif y == 1:\n    pass\n" * 320,
    "strings": "x = (\n" + '    "line"\n' * 320 + ")\n",
    "sum": "x = " + " + ".join(["1"] * 320) + "\n",
    "calls": "x = y" + ".add(1)" * 160 + "\n",
}


@pytest.mark.parametrize("case", DEEP, ids=str)
def test_deep_code_is_edited(case: str) -> None:
    limits = sys.getrecursionlimit(), threading.stack_size()
    before = "y = Old(1)\n" + DEEP[case]
    after = "y = list(1)\n" + DEEP[case]
    check_transformed(before, after, plan(before, {"Old(1)": "list(1)"}))
    assert (sys.getrecursionlimit(), threading.stack_size()) == limits


def test_deeper_than_python_reads_is_refused() -> None:
    before = "y = Old(1)\nx = " + "not " * 7000 + "y\n"
    check_refused(before, plan(before, {"Old(1)": "list(1)"}), "nests too deep")
