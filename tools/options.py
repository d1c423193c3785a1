"""Options that several commands share, declared once."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from normport.tools.errors import UserError


class OutputFormat(StrEnum):
    """The values of ``--output-format``."""

    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"


class TypedPath(type(Path())):  # type: ignore[misc]
    """A path that messages show as it was typed: ``./model.py``, where Path says ``model.py``.

    What is made of it (its parent, a file in it) is a path as any other, and so is what the system
    is asked for.
    """

    typed: str | None = None

    def __str__(self) -> str:
        return self.typed or self.__fspath__()

    def __fspath__(self) -> str:
        plain: str = super().__str__()
        return plain


def path_argument(text: str | Path) -> Path:
    """The path that ``text`` names; UserError when it is empty, which Path takes for ``.``.

    ``-`` alone is stdin; a file of that name is ``./-``, which Path would take for the same.
    A default is a path already.
    """
    if not isinstance(text, str):
        return text
    if not text:
        raise UserError("An empty path was given: name a file or a folder.")
    path = TypedPath(text)
    if os.fspath(path) == "-" != text:
        return Path(text).absolute()
    path.typed = text
    return path


def folder_option(text: str | Path) -> Path:
    """The same with ``~``, which a shell leaves as it is after ``--out=``, expanded."""
    path = path_argument(text)
    try:
        expanded = TypedPath(path.expanduser())
    except RuntimeError as error:
        raise UserError(f"{text} names a user who has no home here: check the path.") from error
    expanded.typed = str(path)
    return expanded


Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        parser=path_argument,
        help="Python files, folders, a vLLM checkout, or `-`.",
    ),
]


class ReportFormat(StrEnum):
    """The values of ``--output-format`` where there are no findings to list."""

    text = "text"
    json = "json"


Report = Annotated[ReportFormat, typer.Option("--output-format", help="How the report is printed.")]
Format = Annotated[OutputFormat, typer.Option("--output-format", help="How findings are printed.")]
Diff = Annotated[bool, typer.Option("--diff", help="Print a diff for `git apply`, nothing else.")]
Write = Annotated[bool, typer.Option("--write", help="Change the files; all of them or none.")]
Unsafe = Annotated[
    bool, typer.Option("--unsafe", help="Also conversions that differ within the stated bound.")
]
AllowUnproven = Annotated[
    bool, typer.Option("--allow-unproven", help="Also conversions that could not be run.")
]
NoProof = Annotated[
    bool, typer.Option("--no-proof", help="Run nothing; every conversion is then unproven.")
]
NoExec = Annotated[
    bool,
    typer.Option(
        "--no-exec",
        help="Execute nothing of the sources that are read, and so no proof.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="FILE", help="This model file alone (repeatable)."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="CLASS.attr=EXPR",
        help="Size of a weightless norm; CLASS is the class that holds it in its attribute attr.",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CODES",
        help="Rules to report and carry out, e.g. NP1,NP202: codes or how they begin.",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="CODES", help="Rules neither reported nor carried out."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="GLOB", help="Files to leave out, as in a .gitignore (repeatable)."
    ),
]
ForceExclude = Annotated[
    bool, typer.Option("--force-exclude", help="Leave out excluded files even if they are named.")
]
StdinFilename = Annotated[
    Path | None,
    typer.Option(
        "--stdin-filename",
        metavar="FILE",
        parser=path_argument,
        help="The name that the source on stdin (PATH is `-`) goes by.",
    ),
]
ShowDone = Annotated[
    bool, typer.Option("--show-done", help="List also what uses a standard layer already.")
]
Interactive = Annotated[
    bool, typer.Option("--interactive", help="Ask about each conversion, then write the files.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 for refused sites as well.")]
AllowDirty = Annotated[
    bool, typer.Option("--allow-dirty", help="Change files that have uncommitted changes.")
]
PortDirty = Annotated[
    bool,
    typer.Option(
        "--allow-dirty",
        help="Start from uncommitted changes too; `git am` applies that series nowhere else.",
    ),
]
Installed = Annotated[
    bool, typer.Option("--installed", help="Take the vLLM that is installed for this Python.")
]
Checkout = Annotated[
    str | None,
    typer.Argument(help="vLLM checkout, vllm folder, or a release such as vllm==0.29.0."),
]
SeriesFolder = Annotated[
    Path | None,
    typer.Option(
        "--series",
        metavar="DIR",
        parser=folder_option,
        help="The series; patches/VERSION when left out.",
    ),
]
