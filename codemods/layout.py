"""Lays edited statements out as ``ruff format`` does, and only those.

vLLM formats its code with ruff, so ruff itself is asked: it gets the statement before and
after the edit, nested as deeply as in the file. Where it would leave the statement as it was,
the file is formatted with ruff and the edited statement takes the layout that ruff gives it.
Otherwise the file has its own style: the rest of the statement keeps it, and only the
replaced expression is laid out.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ruff import find_ruff_bin  # type: ignore[import-untyped]

from normport.codemods.model import FormatterError

MARK = "# normport: next statement"
TIMEOUT_S = 30
"""ruff takes some milliseconds for the statements of a file."""


_INSTALL = "run it by hand, or `pip install --force-reinstall ruff`"


@dataclass(frozen=True)
class Passage:
    """One statement (or the header of a compound one) from its first to its last line.

    before, after: its text with ``\\n`` line ends, without the last; ``after`` has each
    replacement on one line.
    kind: a simple statement; the lines of a ``def``, ``class``, ``if`` ... up to its colon;
        or part of something else, which no formatter can be asked about.
    """

    before: str
    after: str
    kind: Literal["statement", "header", "part"]

    @property
    def indent(self) -> str:
        return self.before[: len(self.before) - len(self.before.lstrip())]


def lay_out(passages: Sequence[Passage], unit: str, line_length: int) -> list[str | None]:
    """The new text of each passage, None where ruff does not format the file's own text as it is.

    ``unit`` is one level of the file's indentation.

    Raises FormatterError if ruff cannot be run, or does not format.
    """
    result: list[str | None] = [None] * len(passages)
    nested: list[tuple[int, str, str]] = []
    for index, passage in enumerate(passages):
        before, after = _nest(passage, passage.before, unit), _nest(passage, passage.after, unit)
        if before is not None and after is not None:
            nested.append((index, before, after))
    snippets = [text for _, *pair in nested for text in pair]
    formatted = _format(snippets, unit, line_length) if snippets else None
    if formatted is None:
        return result
    for place, (index, _, _) in enumerate(nested):
        passage = passages[index]
        if _unnest(passage, formatted[2 * place], unit) == passage.before:
            result[index] = _unnest(passage, formatted[2 * place + 1], unit)
    return result


def _nest(passage: Passage, text: str, unit: str) -> str | None:
    """The passage under as many ``if`` as it is deep; None where that cannot be built."""
    depth, rest = divmod(len(passage.indent), len(unit))
    if passage.kind == "part" or rest or passage.indent != unit * depth:
        return None
    if passage.kind == "header":
        if re.match(r"\s*(?:elif|else|except|finally|case)\b", text):
            return None
        text += f"\n{passage.indent}{unit}pass"
    return "".join(f"{unit * level}if 1:\n" for level in range(depth)) + text + "\n"


def _unnest(passage: Passage, text: str, unit: str) -> str:
    lines = text.strip("\n").split("\n")
    del lines[: len(passage.indent) // len(unit)]
    while lines and not lines[0].strip():
        del lines[0]
    if passage.kind == "header":
        del lines[-1]
    return "\n".join(lines)


def _format(snippets: Sequence[str], unit: str, line_length: int) -> list[str] | None:
    """All snippets as ruff formats them; None where ruff cannot parse one."""
    tabs = unit.startswith("\t")
    options = {
        "line-length": str(line_length),
        "indent-width": "4" if tabs else str(len(unit)),
        "format.indent-style": '"tab"' if tabs else '"space"',
        "format.line-ending": '"lf"',
        # Quotes and strings are not the edit's business.
        "format.quote-style": '"preserve"',
    }
    command = ["format", "--isolated", "--quiet", "--target-version", "py310"]
    for key, value in options.items():
        command += ["--config", f"{key}={value}"]
    command += ["--stdin-filename", "statements.py", "-"]
    done = _run(command, f"\n{MARK}\n".join(snippets))
    if done.returncode == 0:
        text = done.stdout.decode(errors="replace")
        found = re.split(rf"^{re.escape(MARK)}$", text, flags=re.MULTILINE)
        if len(found) == len(snippets):
            return found
    _check_formats()
    return None


@cache
def _check_formats() -> None:
    """Whether it is ruff that is to blame where it did not format: raises FormatterError."""
    done = _run(["format", "--isolated", "--quiet", "--stdin-filename", "check.py", "-"], "x  =  1")
    if (done.returncode, done.stdout.split()) == (0, [b"x", b"=", b"1"]):
        return
    said = (done.stderr or done.stdout).decode(errors="replace").strip().split("\n")[-1]
    told = f" and said `{said[:200]}`" if said else ""
    raise FormatterError(
        f"{_ruff()}, which lays out edited statements, does not format `x = 1`: it ended with "
        f"{done.returncode}{told}; {_INSTALL}."
    )


def _run(arguments: Sequence[str], text: str) -> subprocess.CompletedProcess[bytes]:
    ruff = _ruff()
    try:
        return subprocess.run(
            [ruff, *arguments],
            input=text.encode(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FormatterError(
            f"{ruff}, which lays out edited statements, did not end within {TIMEOUT_S} s; "
            f"{_INSTALL}."
        ) from error
    except OSError as error:
        raise FormatterError(
            f"{ruff}, which lays out edited statements, cannot be run "
            f"({error.strerror or error}); {_INSTALL}."
        ) from error


def _ruff() -> str:
    try:
        return str(find_ruff_bin())
    except FileNotFoundError as error:
        raise FormatterError(
            "The ruff program, which lays out edited statements, is not installed beside "
            "normport; run `pip install ruff`."
        ) from error
