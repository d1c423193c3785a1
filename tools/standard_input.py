"""The path ``-``: source text from stdin, as an editor hands it over."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from normport.tools.discover import PythonFile, enclosing_tree
from normport.tools.errors import UserError

STDIN = Path("-")
NAME = "<stdin>"


def wanted(paths: Sequence[Path], filename: Path | None) -> bool:
    """Whether the source is to come from stdin.

    filename: the name that was given for it, if any.

    Raises UserError when ``-`` stands beside other paths, or a name was given without it.
    """
    if STDIN not in paths:
        if filename is not None:
            raise UserError("--stdin-filename names the source on stdin: give `-` as the path.")
        return False
    if len(paths) > 1:
        raise UserError("`-` reads one source from stdin: give it alone, or files and folders.")
    return True


def read_stdin(filename: Path | None) -> PythonFile:
    """The source on stdin, as though it were the file ``filename`` of the tree around it.

    Raises UserError when stdin cannot be read.
    """
    path = Path(os.path.abspath(filename or NAME))
    tree = enclosing_tree(path.parent)
    # Typed as always there, but None where the descriptor was closed.
    if getattr(sys, "stdin", None) is None:
        raise UserError("Standard input is closed, so no source can be read: leave it open.")
    try:
        source = sys.stdin.buffer.read()
    except OSError as error:
        raise UserError(
            f"Standard input cannot be read ({error.strerror or error}); pipe a source into it."
        ) from error
    return PythonFile(path, tree or path.parent, tree, named=True, source=source)
