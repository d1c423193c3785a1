"""What the parts of the bench found, as Markdown: one function for each part's table."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from textwrap import fill
from typing import Any

Found = dict[str, Any]

HEAD = """\
# Performance

Written by the bench from what it measured; nothing here is typed by hand. To have it again, on an
otherwise idle machine:

    make bench bench-engine

Each part below can be run alone; its command stands with its table. Every ratio comes from one run
in which both sides took turns on the same machine, and stands with its spread: the median, then in
brackets the quartiles, or what the table's head says.
"""
NOT_RUN = "Not run yet."


def machine() -> str:
    """The machine in words, without names of hosts or paths."""
    return (
        f"{os.cpu_count()} processors ({_processor()}), {platform.system()}, "
        f"Python {platform.python_version()}"
    )


def page(found: dict[str, Found]) -> str:
    parts = [HEAD, _verdict(found)]
    for part, (title, command, _) in PARTS.items():
        parts.append(f"## {title}\n\n    {command}\n")
        parts.append(table(part, found[part]) if part in found else NOT_RUN + "\n")
    return "\n".join(parts)


def table(part: str, found: Found) -> str:
    """One part's tables, with the day, the machine and the limits that were missed."""
    lines = PARTS[part][2](found).splitlines()
    # Tables have one line a row, whatever its length.
    text = "\n".join(line if line.startswith("|") else fill(line, 100) for line in lines) + "\n"
    missed = "".join(f"- Missed: {sentence}.\n" for sentence in found["missed"])
    held = missed if missed else "Every limit was kept.\n"
    return f"{text}\n{held}\n{found['date']}; {found['machine']}.\n"


def _verdict(found: dict[str, Found]) -> str:
    rows = []
    for part, (title, _, _) in PARTS.items():
        if part not in found:
            rows.append((title, "not run"))
            continue
        missed = len(found[part]["missed"])
        engine = found[part]["rows"] if part == "engine" else ()
        open_ = sum(row["verdict"] == "not decided" for row in engine)
        state = f"{missed} missed" if missed else "kept"
        rows.append((title, state + (f", {open_} not decided" if open_ else "")))
    return _markdown(("part", "limits"), rows)


def _guard(found: Found) -> str:
    rows = [
        (
            case,
            *(_spread(one["ns_per_call"][side], 0) for side in ("upstream", "ours", "unguarded")),
            _spread(one["guard_ns"], 0),
            _spread(one["ratio"], 3),
        )
        for case, one in found["cases"].items()
    ]
    head = ("call", f"{found['upstream']}, ns", "ours, ns", "without guards, ns", "guards add, ns")
    return (
        f"One call of `GemmaRMSNorm.forward_xpu`, {found['rows']} x {found['hidden']} "
        f"{found['dtype']}, {found['repeats']} turns of {found['calls']} calls; the kernel is a "
        "stand-in that does nothing, so this is the host's share alone and says nothing of an XPU. "
        f"The limit of the ratio is {found['limit']:g}.\n\n"
        + _markdown((*head, "ours / upstream"), rows)
    )


def _providers(found: Found) -> str:
    rows = [
        (
            case,
            f"{one['ns']['vllm']}",
            f"{one['ns']['ours']}",
            _spread(one["added_ns"], 0),
            _spread(one["ratio"], 3),
        )
        for case, one in found["cases"].items()
    ]
    return (
        f"One call of vLLM's `RMSNorm` on a simulated XPU with the platform's order of providers "
        f"and with the plug-in's, hidden 6656, {found['repeats']} turns of {found['calls']} calls; "
        "the kernel does nothing. In eager mode the two are one order, and the limit of the ratio "
        "is 1.1. With `compile_sizes=[1]` the guarded providers stand before `native`: inside of a "
        "graph that costs a call nothing, outside of one they are asked. They take one float16 "
        "row and the heads of one token. No limit there: what `native` takes on this CPU says "
        "nothing of a device.\n\n"
        + _markdown(("call", "vLLM's, ns", "ours, ns", "added, ns", "ratio"), rows)
    )


def _norms(found: Found) -> str:
    rows = [
        (
            f"`{case['norm']}`",
            case["dtype"],
            str(case["rows"]),
            *(f"{case['us'][side]:.0f}" for side in ("eager", "compiled", "ours")),
            *(_spread(case[key], 2) for key in ("eager/ours", "compiled/ours", "share of copy")),
        )
        for case in found["cases"]
    ]
    head = ("op", "dtype", "rows", "eager, us", "compiled, us", "ours, us")
    ratios = ("eager / ours", "compiled / ours", "share of copy bandwidth")
    return (
        "The CPU provider against the unported MuseGlimmer's own chain and torch.compile of that "
        "chain; hidden 6656, 52 query and 4 key heads of 128. Limits: at least 2 times as fast as "
        "the eager chain, at least 0.95 times as fast as the compiled one. The allocator keeps "
        "freed memory, for all sides; or the pages of a large tensor would decide. torch "
        f"{found['torch']}, {found['threads']} thread(s), {found['turns']} turns.\n\n"
        + _markdown((*head, *ratios), rows)
    )


def _scan(found: Found) -> str:
    rows = [
        (
            name,
            _spread(seconds, 2),
            f"{found['cpu_seconds'][name]:.2f}",
            _spread(found["times_scan"][name], 2),
        )
        for name, seconds in found["seconds"].items()
    ]
    memory = found["megabytes"]
    held = f"{memory:.0f} MB" if memory is not None else "not measured"
    missing = ", ".join(found["not_installed"])
    return (
        f"The {found['files']} Python files of {found['source']}, {found['repeats']} turns "
        "(`proof` and `libcst` once). Limits: 4 s without proof, 25 s with it, 0.25 s for "
        "`--version` and `--help`, 400 MB, a twentieth of LibCST's codemod that changes nothing. "
        f"Memory of a scan: {held}.{f' Not installed: {missing}.' if missing else ''}"
        f"{_at_reference(found)}\n\n"
        + _markdown(("command", "s", "processors, s", "times the scan"), rows)
    )


def _at_reference(found: Found) -> str:
    if found["at_reference"] is None:
        return ""
    spread = _spread(found["at_reference"], 2)
    return (
        " The limits are for a machine on which ast-grep takes 2.2 s; by the ratio of each turn a "
        f"scan would take {spread} s there."
    )


def _car(found: Found) -> str:
    rows = [
        (f"`{label}`", f"{middle:.1f} ({low:.1f} to {high:.1f})", "10")
        for label, (low, middle, high) in found["lookups"].items()
    ]
    shares = [(name, f"{share:.2%}", "5%") for name, share in found["shares"].items()]
    return (
        f"A repeated `route` in dict look-ups of the same run: the median of {found['rounds']} "
        "rounds, with the smallest and the largest.\n\n"
        + _markdown(("question", "look-ups", "limit"), rows)
        + "\nThe pass's part of the compile time, tensor parallel 2 in the real engine.\n\n"
        + _markdown(("rank", "share", "limit"), shares)
    )


def _calls(found: Found) -> str:
    rows = [
        (case, side, f"{one['us'][side][1]:.1f}", _spread(one["ratio"][side], 3))
        for case, one in found["cases"].items()
        for side in one["us"]
    ]
    return (
        f"One eager call of a norm in vLLM 0.29.0, {found['rows']} row(s) of {found['hidden']} in "
        f"{found['dtype']} (weightless: its heads), {found['turns']} turns: the share of a decode "
        "step that the whole model's figures cannot resolve. No limit.\n\n"
        + _markdown(("call", "variant", "us", "of unported"), rows)
    )


def _engine(found: Found) -> str:
    rows = [
        (
            row["mode"],
            row["variant"],
            f"{row['tokens_per_second']:.1f}",
            f"{row['ratio']:.3f} [{row['interval'][0]:.3f}, {row['interval'][1]:.3f}]",
            f"{row['range'][0]:.3f} to {row['range'][1]:.3f}",
            f"{row['limit']:g}: {row['verdict']}" if row["verdict"] else "",
        )
        for row in found["rows"]
    ]
    return (
        f"{found['setup']}. In brackets the interval in which the median lies with 95% confidence: "
        "a limit is held when the median reaches it, missed when the whole interval is below it, "
        "and not decided otherwise.\n\n"
        + _markdown(("mode", "variant", "tokens/s", "of unported", "all rounds", "limit"), rows)
    )


PARTS: dict[str, tuple[str, str, Callable[[Found], str]]] = {
    "guard": ("Guards of the XPU dispatch", "python bench/guard.py", _guard),
    "providers": (
        "Guarded IR providers",
        "NORMPORT_SIMULATE=xpu PYTHONPATH=tests/simulated python bench/providers.py",
        _providers,
    ),
    "norms": ("norm_add_norm and qk_norm on the CPU", "python bench/norms.py", _norms),
    "engine": ("A whole MuseGlimmer in the real engine", "python bench/engine.py", _engine),
    "calls": ("One norm in eager mode on the CPU", "python bench/calls.py", _calls),
    "scan": ("A scan of vLLM", "python bench/scan.py", _scan),
    "car": ("CAR-RMSNorm's decisions", "python bench/car.py --engine", _car),
}
"""Name -> heading, command, and what writes the table."""


def _spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = values
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _processor() -> str:
    """The instruction set and its widest vectors, which say more than a name."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next(line for line in file if line.startswith(("flags", "Features"))).split()
    except (OSError, StopIteration):
        return platform.machine()
    vectors = next((flag for flag in ("avx512f", "avx2", "asimd") if flag in flags), None)
    return f"{platform.machine()}{f' with {vectors}' if vectors else ''}"
