"""How often each guard said yes or no, and why: by kind of layer and reason.

Nothing counts until asked. Then the guards are replaced by ones that count, for the whole process,
and put back at the end; so a process that does not ask pays nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import util
from typing import Any

import torch
from torch import Tensor

from normport.layers import plugin

KERNEL = "kernel"
"""The reason's place where there is none: the guard let the kernel run."""

_counting_until_exit = False

_adding = threading.Lock()

Counts = Counter[tuple[str, str]]
"""(kind of layer, reason) -> calls."""


def _free_lock() -> None:
    """In a forked process nobody would give back a lock that another thread held."""
    global _adding
    _adding = threading.Lock()


os.register_at_fork(after_in_child=_free_lock)


def _add(counts: Counts, kind: str, reason: str | None) -> None:
    with _adding:
        counts[kind, reason or KERNEL] += 1


@contextmanager
def counted() -> Iterator[Counts]:
    """Within it every guard decision is counted in what it gives; traced code is not."""
    counts: Counts = Counter()
    with ExitStack() as stack:
        platform = plugin.supported_platform()
        if platform == "xpu":
            _count_providers(counts, stack)
            _count_gemma(counts, stack)
        elif platform == "musa":
            _count_musa(counts, stack)
        yield counts


def count_until_exit(path: str) -> None:
    """Count from here on, and write ``path`` when the process ends: a JSON list of records.

    ``{pid}`` in ``path`` becomes the process's number: an engine has several processes, and each
    that is forked from this one counts for itself. A second call changes nothing.
    """
    global _counting_until_exit
    if _counting_until_exit:
        return
    _counting_until_exit = True
    stack = ExitStack()
    counts = stack.enter_context(counted())

    def write() -> None:
        stack.close()
        records = [
            {"layer": kind, "reason": reason, "calls": calls}
            for (kind, reason), calls in sorted(counts.items())
        ]
        try:
            with open(path.replace("{pid}", str(os.getpid())), "w", encoding="utf-8") as file:
                json.dump(records, file, indent=2)
        except OSError as error:
            print(f"normport: no guard counts in {path}: {error.strerror}", file=sys.stderr)

    def begin_again(_: object) -> None:
        counts.clear()
        # A process that multiprocessing forks ends without what atexit was told.
        util.Finalize(None, write, exitpriority=0)

    atexit.register(write)
    util.register_after_fork(write, begin_again)


def _replace(stack: ExitStack, holder: Any, name: str, value: Any) -> None:
    stack.callback(setattr, holder, name, getattr(holder, name))
    setattr(holder, name, value)


def _count_providers(counts: Counts, stack: ExitStack) -> None:
    from vllm import ir

    from normport.layers import xpu

    found = xpu.providers()
    for provider, kind, refused in (
        ("xpu_fp16_row", "RMSNorm", found.fp16_row_refused),
        ("xpu_weightless_qk", "RMSNorm, weightless", found.weightless_qk_refused),
    ):

        def supports_args(
            x: Tensor,
            weight: Tensor | None,
            epsilon: float,
            variance_size: int | None = None,
            kind: str = kind,
            refused: Callable[..., str | None] = refused,
        ) -> bool:
            reason = refused(x, weight, variance_size)
            # Each guard is asked about the other's layers too, which says nothing of either.
            if (weight is None) == kind.endswith("weightless") and not _traced():
                _add(counts, kind, reason)
            return reason is None

        _replace(stack, ir.ops.rms_norm.impls[provider], "_supports_args", supports_args)


def _count_gemma(counts: Counts, stack: ExitStack) -> None:
    import vllm._xpu_ops as in_vllm

    from normport.layers import gemma_reasons
    from normport.layers.in_tree import xpu_ops as ours

    for name, kind, refused in (
        ("gemma_rms_norm_supported", "GemmaRMSNorm", gemma_reasons.gemma_refused),
        (
            "fused_add_gemma_rms_norm_supported",
            "GemmaRMSNorm with residual",
            gemma_reasons.fused_gemma_refused,
        ),
    ):
        for module in {id(module): module for module in (in_vllm, ours)}.values():
            guard = getattr(module, name, None)
            # vLLM's own dispatch, from 0.30 on, has no guards.
            if guard is not None:
                _replace(stack, module, name, _counting(counts, guard, kind, refused))


def _count_musa(counts: Counts, stack: ExitStack) -> None:
    from normport.layers import musa

    for name, kind in (
        ("fp16_row_refused", "RMSNorm or GemmaRMSNorm"),
        ("weightless_qk_refused", "RMSNorm, weightless"),
    ):
        refused = getattr(musa, name)

        def count(
            *args: Any, kind: str = kind, refused: Callable[..., str | None] = refused
        ) -> str | None:
            reason = refused(*args)
            if not _traced():
                _add(counts, kind, reason)
            return reason

        _replace(stack, musa, name, count)


def _counting(
    counts: Counts,
    guard: Callable[..., bool],
    kind: str,
    refused: Callable[..., str | None],
) -> Callable[..., bool]:
    def count(*args: Tensor) -> bool:
        if not _traced():
            _add(counts, kind, refused(*args))
        return guard(*args)

    return count


def _traced() -> bool:
    return torch.compiler.is_dynamo_compiling()
