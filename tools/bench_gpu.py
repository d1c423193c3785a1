"""The Triton kernels on a CUDA GPU, beside what else could run there.

    python -m normport.tools.bench_gpu [--out FILE] [--rows 1 16 512 4096 16384]

Compares provider ``triton`` with the definition, with torch.compile of it, with
``torch.nn.functional.rms_norm`` and, if it is installed, with flashinfer, where these compute the
same norm. Each figure is the median of do_bench with its quartiles; the share is the time that
copying as many bytes takes on the same device over the kernel's time. Writes FILE.json and FILE.md
with date and device; takes a few minutes. Without a CUDA GPU it says so and measures nothing.

With TRITON_INTERPRET=1 the kernels run in Triton's interpreter on the CPU: then only the results
are compared, and no time is taken.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from normport.kernels.norm_add_norm import norm_add_norm
from normport.kernels.op import Op
from normport.kernels.providers import triton as provider
from normport.kernels.qk_norm import qk_norm
from normport.kernels.rms_norm import rms_norm
from normport.tools.errors import UserError

HIDDEN, HEAD_DIM, QUERY_HEADS, KEY_HEADS = 6656, 128, 52, 4
ROWS = (1, 16, 512, 4096, 16384)
SPEED_MS = 60
"""Milliseconds of repetitions for each figure."""


@dataclass(frozen=True)
class Case:
    """One norm at one size: what each side calls, and the bytes that any of them has to move."""

    norm: str
    rows: int
    moved: int
    sides: dict[str, Callable[[], Any]]


def device() -> torch.device:
    """The GPU, or the CPU for the interpreter; UserError where there is neither."""
    if provider.interpreted():
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "there is no CUDA GPU here, so nothing was measured; run this on a machine that has one"
        )
    reason = provider.supported()
    if reason is not None:
        raise UserError(f"the Triton kernels cannot run: {reason}")
    return torch.device("cuda")


def sides_of(op: Op[..., Any], *args: Any, **others: Callable[[], Any]) -> dict[str, Any]:
    """The Triton provider, the definition, torch.compile of it, and others."""
    ours = op.providers["triton"]
    reason = ours.why_not(*args)
    if reason is not None:
        raise UserError(f"the Triton kernel of {op.name} does not take this size: {reason}")
    compiled = torch.compile(op.native, dynamic=False, fullgraph=True)
    sides: dict[str, Callable[[], Any]] = {
        "triton": functools.partial(ours.run, *args),
        "eager": functools.partial(op.native, *args),
    }
    if not provider.interpreted():
        sides["torch.compile"] = functools.partial(compiled, *args)
    return sides | others


def cases(rows: Sequence[int], hidden: int, dtype: torch.dtype) -> list[Case]:
    """Every norm at every row count."""
    on = device()
    draw = functools.partial(torch.randn, device=on, dtype=dtype)
    weight, other = draw(hidden), draw(hidden)
    flashinfer = importlib.import_module("flashinfer") if _has("flashinfer") else None
    found = []
    for count in rows:
        x, residual = draw(count, hidden), draw(count, hidden)
        heads = draw(count, (QUERY_HEADS + 2 * KEY_HEADS), HEAD_DIM)
        q, k = heads[:, :QUERY_HEADS], heads[:, QUERY_HEADS : QUERY_HEADS + KEY_HEADS]
        scale_sides: dict[str, Any] = {
            "F.rms_norm": functools.partial(functional.rms_norm, x, (hidden,), weight, 1e-5)
        }
        gemma_sides: dict[str, Any] = {}
        if flashinfer is not None and on.type == "cuda":
            scale_sides["flashinfer"] = functools.partial(flashinfer.rmsnorm, x, weight, 1e-5)
            gemma_sides["flashinfer"] = functools.partial(flashinfer.gemma_rmsnorm, x, weight, 1e-5)
        # In float32 and rounded once, as the other sides compute it.
        scale_args = (x, weight, 1e-5, None, False, True)
        gemma_args = (x, weight, 1e-5, None, True, True)
        sandwich = (x, residual, weight, other, 1e-8, 1e-5, True, True, True, True)
        found += [
            Case("rms_norm", count, 2 * x.nbytes, sides_of(rms_norm, *scale_args, **scale_sides)),
            Case(
                "gemma rms_norm",
                count,
                2 * x.nbytes,
                sides_of(rms_norm, *gemma_args, **gemma_sides),
            ),
            Case("norm_add_norm", count, 4 * x.nbytes, sides_of(norm_add_norm, *sandwich)),
            Case(
                "qk_norm",
                count,
                2 * (q.nbytes + k.nbytes),
                sides_of(qk_norm, q, k, None, None, 1e-5),
            ),
        ]
    return found


def time_of(call: Callable[[], Any]) -> list[float]:
    """Lower quartile, median and upper quartile of a call, in microseconds."""
    from triton.testing import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        do_bench,
    )

    found = do_bench(call, warmup=10, rep=SPEED_MS, quantiles=[0.25, 0.5, 0.75])
    return [round(1000 * value, 3) for value in found]


def difference(sides: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The largest difference of each other side's results from the Triton kernels'."""
    results = {name: _tensors(call()) for name, call in sides.items()}
    ours = results.pop("triton")
    return {
        name: max(
            float((a.float() - b.float()).abs().max()) for a, b in zip(ours, theirs, strict=True)
        )
        for name, theirs in results.items()
    }


def measure(case: Case, interpreted: bool) -> dict[str, Any]:
    """The figures of one case; in the interpreter only how far the results are apart."""
    row: dict[str, Any] = {
        "norm": case.norm,
        "rows": case.rows,
        "bytes": case.moved,
        "difference": difference(case.sides),
    }
    if interpreted:
        return row
    source = torch.ones(case.moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = time_of(lambda: target.copy_(source))
    row["us"] = {name: time_of(call) for name, call in case.sides.items()} | {"copy": copied}
    row["share_of_copy"] = {
        name: round(copied[1] / times[1], 3) for name, times in row["us"].items() if name != "copy"
    }
    return row


def table(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = [
        f"# Triton kernels on {report['device']}",
        "",
        f"{report['date']}, torch {report['torch']}, {report['dtype']}, hidden {report['hidden']}, "
        f"{QUERY_HEADS} query and {KEY_HEADS} key heads of {HEAD_DIM}. Made with "
        "`python -m normport.tools.bench_gpu`.",
        "",
    ]
    if report["interpreted"]:
        lines += [
            "Triton's interpreter on the CPU: results only, no times.",
            "",
            "| norm | rows | largest difference |",
            "|---|---|---|",
        ]
        for row in report["cases"]:
            said = ", ".join(f"{name} {value:.3g}" for name, value in row["difference"].items())
            lines.append(f"| {row['norm']} | {row['rows']} | {said} |")
        return "\n".join(lines) + "\n"
    lines += [
        "Median [quartiles] in microseconds; the share is that of the memory-copy bandwidth.",
        "",
        "| norm | rows | side | us | share of copy |",
        "|---|---|---|---|---|",
    ]
    for row in report["cases"]:
        for name, (low, middle, high) in row["us"].items():
            share = row["share_of_copy"].get(name)
            said = "" if share is None else f"{share:.0%}"
            lines.append(
                f"| {row['norm']} | {row['rows']} | {name} "
                f"| {middle:.1f} [{low:.1f}, {high:.1f}] | {said} |"
            )
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All cases; UserError without a device."""
    on = device()
    interpreted = provider.interpreted()
    name = "the CPU, interpreted" if interpreted else torch.cuda.get_device_name()
    torch.manual_seed(0)
    with torch.inference_mode():
        made = cases(options.rows, options.hidden, getattr(torch, options.dtype))
        rows = [measure(case, interpreted) for case in made]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": name,
        "device_type": on.type,
        "torch": torch.__version__,
        "interpreted": interpreted,
        "dtype": options.dtype,
        "hidden": options.hidden,
        "cases": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m normport.tools.bench_gpu",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="write FILE.json and FILE.md too")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    options = parser.parse_args(arguments)
    if min(options.rows) < 1 or options.hidden < 1:
        parser.error("--rows and --hidden must be at least 1")
    try:
        report = run(options)
        text = table(report)
        if options.out is not None:
            options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(text)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: the report could not be written: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    return 0


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _tensors(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result


if __name__ == "__main__":
    sys.exit(main())
