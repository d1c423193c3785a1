"""Runs a function with room for deep recursion: syntax trees nest as deep as the source makes them.

A chain of 300 ``elif`` or 150 method calls is one level of tree each, and LibCST needs several
frames a level, more than Python's default limit of 1000 frames.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

FRAMES = 10_000
# Address space only: pages that are never reached cost no memory.
STACK_BYTES = 256 * 2**20

_lock = threading.Lock()


def with_deep_stack(function: Callable[[], T]) -> T:
    """What ``function`` returns or raises, run in a thread with a larger stack.

    A recursion beyond ``FRAMES`` frames raises RecursionError as usual. Python's recursion
    limit and thread stack size are of the whole process: both are back as they were afterwards,
    and only one call runs at a time.
    """
    with _lock:
        limit = sys.getrecursionlimit()
        size = threading.stack_size(STACK_BYTES)
        try:
            sys.setrecursionlimit(max(limit, FRAMES))
            with ThreadPoolExecutor(max_workers=1) as pool:
                return pool.submit(function).result()
        finally:
            threading.stack_size(size)
            sys.setrecursionlimit(limit)
