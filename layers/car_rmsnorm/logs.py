"""The logger of what happens inside vLLM's processes."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def logger() -> Any:
    """vLLM's kind of logger; below ``vllm``, the only name that its settings give a handler."""
    from vllm.logger import init_logger

    return init_logger("vllm.normport.car_rmsnorm")
