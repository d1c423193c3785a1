"""Plans written by hand, and the two checks that every editor test ends in."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from textwrap import dedent

import pytest
from ruff import find_ruff_bin  # type: ignore[import-untyped]

from normport.codemods.edit import apply_plan
from normport.codemods.model import Edit, EditResult, FilePlan, RefusedEdit

LAYERNORM = "vllm.model_executor.layers.layernorm"
# vLLM's own rule selection; its target and line length are ruff's defaults.
VLLM_SELECT = "E,F,UP,B,ISC,SIM,I,G"
VLLM_IGNORE = "F405,F403,E731,B905,B007,UP032"
NOTHING = FilePlan((), {})


def edits(text: str, replacements: Mapping[str, str]) -> tuple[Edit, ...]:
    """One edit for every place where an ``old`` text stands as a whole."""
    found = []
    for old, new in replacements.items():
        start = text.find(old)
        assert start >= 0, f"{old!r} is not in the source"
        while start >= 0:
            if not (text[start - 1 : start].isidentifier() or text[start - 1 : start] == "."):
                head = text[:start].replace("\r\n", "\n").replace("\r", "\n")
                line = head.count("\n") + 1
                found.append(Edit(line, len(head) - head.rfind("\n"), old, new))
            start = text.find(old, start + len(old))
    return tuple(found)


def plan(
    text: str,
    replacements: Mapping[str, str] | None = None,
    imports: Mapping[str, tuple[str, ...]] | None = None,
    dead: tuple[str, ...] = (),
) -> FilePlan:
    return FilePlan(edits(text, replacements or {}), dict(imports or {}), dead)


def check_transformed(
    before: str | bytes, after: str | bytes, wanted: FilePlan, line_length: int = 88
) -> EditResult:
    """The plan gives ``after``, which compiles, and an empty plan then changes nothing."""
    old = before if isinstance(before, bytes) else dedent(before).encode()
    new = after if isinstance(after, bytes) else dedent(after).encode()
    result = apply_plan(old, wanted, line_length)
    assert result.source.decode("latin-1") == new.decode("latin-1")
    compile(result.source, "after", "exec", dont_inherit=True)
    assert apply_plan(result.source, NOTHING, line_length) == EditResult(result.source)
    return result


def check_noop(source: str | bytes, wanted: FilePlan) -> None:
    text = source if isinstance(source, bytes) else dedent(source).encode()
    assert apply_plan(text, wanted) == EditResult(text)


def check_refused(source: str | bytes, wanted: FilePlan, match: str) -> None:
    text = source if isinstance(source, bytes) else dedent(source).encode()
    with pytest.raises(RefusedEdit, match=match) as caught:
        apply_plan(text, wanted)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence


def lint(source: bytes, select: str = VLLM_SELECT, line_length: int = 88) -> list[str]:
    """What ruff reports, one entry per finding with its rule code and message, no positions."""
    done = subprocess.run(
        [
            *(find_ruff_bin(), "check", "--isolated", "--quiet", "--output-format", "concise"),
            *("--select", select, "--ignore", VLLM_IGNORE, "--target-version", "py310"),
            *("--line-length", str(line_length)),
            *("--config", 'lint.isort.known-first-party=["vllm"]'),
            *("--stdin-filename", "model.py", "-"),
        ],
        input=source,
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return [line.split(": ", 1)[1] for line in done.stdout.decode().splitlines()]


def is_formatted(source: bytes, line_length: int = 88) -> bool:
    """Whether ``ruff format`` would leave the file as it is."""
    done = subprocess.run(
        [
            *(find_ruff_bin(), "format", "--isolated", "--check", "--quiet"),
            *("--target-version", "py310", "--line-length", str(line_length)),
            *("--stdin-filename", "model.py", "-"),
        ],
        input=source,
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 0
