"""The Triton kernels in Triton's interpreter, in a process of their own: test_triton.py runs it.

    TRITON_INTERPRET=1 python triton_cases.py

Prints one JSON object: for each case what went wrong, or null. The variable changes how Triton's
own functions are made, so it must not be set where anything else may import Triton.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from norm_cases import DTYPES, check_close, draw, exact_norm
from torch import Tensor

from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.op import PRIORITY, Op
from normport.kernels.qk_norm import qk_norm
from normport.kernels.rms_norm import rms_norm

BOTH = (False, True)
Case = Callable[[], None]


def check(op: Op[..., object], *args: object) -> None:
    """``triton`` takes the call; its results are the native ones, up to the order of a sum."""
    choice = op.choose(*args)
    assert choice.provider == "triton", choice
    found, wanted = op(*args), op.native(*args)
    pairs = [(found, wanted)] if isinstance(found, Tensor) else zip(found, wanted, strict=True)  # type: ignore[call-overload]
    for mine, native in pairs:
        assert mine.is_contiguous()
        assert mine.dtype == native.dtype
        step = torch.finfo(mine.dtype).eps * (8 if mine.dtype == torch.float32 else 1)
        torch.testing.assert_close(mine, native, rtol=step, atol=step)
        if mine.dtype != torch.float32:
            different = int((mine != native).sum())
            assert different <= 0.02 * mine.numel() + 1, f"{different} of {mine.numel()} differ"


def weights(dtype: torch.dtype, size: int) -> list[Tensor | None]:
    return [None, draw(size, dtype=dtype), draw(size, dtype=torch.float32)]


def norms(dtype: torch.dtype) -> None:
    x = draw(2, 769, dtype=dtype)
    for weight, offset, wide in itertools.product(weights(dtype, 769), BOTH, BOTH):
        check(rms_norm, x, weight, 1e-6, None, offset, wide)
    check(rms_norm, x, None, 1e-6, 100)


def sandwiches(dtype: torch.dtype) -> None:
    x, residual = draw(2, 65, dtype=dtype), draw(2, 65, dtype=dtype)
    # The order of rounding of each norm is the kernel of rms_norm; here only their sum is new.
    kinds = [
        (None, False, False),
        *((weight, True, wide) for weight in weights(dtype, 65)[1:] for wide in BOTH),
    ]
    for (weight, offset, wide), *choices in itertools.product(kinds, BOTH, BOTH):
        round_norm, round_sum = choices
        check(
            norm_add_norm, x, residual, weight, weight, 1e-8, 1e-5, offset, wide, not offset, wide,
            round_norm, round_sum,
        )  # fmt: skip


def heads(dtype: torch.dtype) -> None:
    qkv = draw(3, 6 * 64, dtype=dtype)
    q, k, _ = qkv.split([4 * 64, 64, 64], dim=-1)
    q, k = q.unflatten(-1, (4, 64)), k.unflatten(-1, (1, 64))
    for weight, query_scale in itertools.product(weights(dtype, 64), (None, 0.37)):
        check(qk_norm, q, k, weight, weight, 1e-5, False, False, query_scale)
    check(qk_norm, q, k, draw(64, dtype=dtype), None, 1e-5, True, True)


def strided() -> None:
    for x in (
        draw(16),
        draw(5, 192)[:, 64:128],
        draw(3, 5, 32).transpose(0, 1),
        draw(2, 2, 3, 16),
        draw(3, 1, 8),
        draw(1, 1),
    ):
        check(rms_norm, x, draw(x.shape[-1]), 1e-6)
    wide = draw(5, 192)
    check(norm_add_norm, wide[:, :64], wide[:, 64:128], None, None, 1e-8, 1e-5)
    check(norm_add_norm, wide, wide, None, None, 1e-8, 1e-5)


def many_rows(weighted: bool, offset: bool) -> None:
    x, weight = draw(83, 6656), draw(6656) if weighted else None
    check(rms_norm, x, weight, 1e-6, None, offset, offset)
    check_close(rms_norm(x, weight, 1e-6, None, offset, True), exact_norm(x, weight, 1e-6, offset))


def many_sandwiches() -> None:
    x, residual, weight = draw(83, 6656), draw(83, 6656), draw(6656)
    check(norm_add_norm, x, residual, weight, weight, 1e-8, 1e-5, True, True, True, True)


def many_heads() -> None:
    check(qk_norm, draw(83, 4, 128), draw(83, 1, 128), None, None, 1e-5)


def heads_far_apart() -> None:
    """Heads first, many tokens behind: the third head is 2**31 elements away. Only pages that are
    written take memory."""
    far = torch.empty(2**31 + 8, dtype=torch.float16).as_strided((1, 3, 8), (8, 2**30, 1))
    far.copy_(draw(1, 3, 8))
    check(qk_norm, far, draw(1, 1, 8, dtype=torch.float16), None, None, 1e-5)


def refusals() -> None:
    x, cube = draw(2, 64), draw(2, 3, 64)
    for op, args, reason in (
        (rms_norm, (draw(2, 16385), None, 1e-6), "SIZE"),
        (rms_norm, (x[:0], None, 1e-6), "EMPTY"),
        (rms_norm, (x.double(), None, 1e-6), "DTYPE"),
        (rms_norm, (x.to("meta"), None, 1e-6), "OTHER_PLATFORM"),
        (rms_norm, (draw(64, 2).t(), None, 1e-6), "LAYOUT"),
        (rms_norm, (x, None, 1e-6, 65), "VARIANCE_SIZE"),
        (rms_norm, (x, draw(65), 1e-6), "WEIGHT_SHAPE"),
        (rms_norm, (draw(1, 1).expand(2**31, 1), None, 1e-6), "ROWS"),
        (norm_add_norm, (x, x[:1], None, None, 1e-6, 1e-6), "RESIDUAL"),
        (norm_add_norm, (x, draw(64, 2).t(), None, None, 1e-6, 1e-6), "LAYOUT"),
        (qk_norm, (x, cube, None, None, 1e-6), "RANK"),
        (qk_norm, (cube, cube[:1], None, None, 1e-6), "SIZE"),
        (qk_norm, (cube, cube.float(), None, None, 1e-6), "DTYPE"),
        (qk_norm, (cube, cube[:, :0], None, None, 1e-6), "EMPTY"),
        (qk_norm, (cube, draw(1, 1, 64).expand(2, 65535, 64), None, None, 1e-6), "ROWS"),
        (qk_norm, (draw(2, 64, 64).mT, draw(2, 64, 64).mT, None, None, 1e-6), "LAYOUT"),
    ):
        found = op.providers["triton"].why_not(*args)  # type: ignore[attr-defined]
        assert getattr(found, "name", None) == reason, f"{found}, not {reason}"


def cases() -> Iterator[tuple[str, Case]]:
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        yield f"rms_norm {name}", lambda dtype=dtype: norms(dtype)  # type: ignore[misc]
        yield f"norm_add_norm {name}", lambda dtype=dtype: sandwiches(dtype)  # type: ignore[misc]
        yield f"qk_norm {name}", lambda dtype=dtype: heads(dtype)  # type: ignore[misc]
    yield "strided", strided
    yield "heads far apart", heads_far_apart
    yield "refusals", refusals
    yield "83 x 6656 weightless", lambda: many_rows(False, False)
    yield "83 x 6656 scale", lambda: many_rows(True, False)
    yield "83 x 6656 offset", lambda: many_rows(True, True)
    yield "83 x 6656 norm_add_norm", many_sandwiches
    yield "83 tokens qk_norm", many_heads


NAMES = [name for name, _ in cases()]


def round_to_nearest() -> None:
    """Let the interpreter convert to bfloat16 as devices do.

    Triton 3.9's cuts off the bits (``cast_impl`` in triton/runtime/interpreter.py passes no
    rounding mode), while every backend rounds to the nearest, ties to even. And it is slow.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) == (tl.bfloat16, tl.float32):
            return torch.from_numpy(data.view("int16").copy()).view(torch.bfloat16).float().numpy()
        if (source, target) != (tl.float32, tl.bfloat16):
            return original(data, source, target, rounding)
        narrow = torch.from_numpy(data.copy()).to(torch.bfloat16)
        return narrow.view(torch.int16).numpy().view("uint16")

    interpreter._convert_float = convert


def main() -> int:
    round_to_nearest()
    PRIORITY["cpu"] = ("triton",)
    torch.manual_seed(1)
    report: dict[str, str | None] = {}
    for name, case in cases():
        try:
            case()
        except AssertionError as error:
            report[name] = str(error) or "failed"
        else:
            report[name] = None
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
