"""Files that are left out: patterns as in a ``.gitignore``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from normport.tools.discover import PythonFile
from normport.tools.errors import UserError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


@dataclass(frozen=True)
class Exclusion:
    """Patterns, and the folder that one with a slash in it starts from.

    where: the option or key, for messages.

    Raises UserError for a pattern that is none.
    """

    patterns: tuple[str, ...] = ()
    base: Path = field(default_factory=Path)
    where: str = "--exclude"

    def without(self, files: Sequence[PythonFile], *, force: bool) -> list[PythonFile]:
        """Those of ``files`` that no pattern matches.

        force: leave out also files that the user named one by one.
        """
        if not self.patterns:
            return list(files)
        spec = self._spec()
        base = self.base.absolute()
        return [
            file
            for file in files
            if (file.named and not force) or not spec.match_file(_below(file, base))
        ]

    def _spec(self) -> GitIgnoreSpec:
        from pathspec import GitIgnoreSpec

        for pattern in self.patterns:
            try:
                GitIgnoreSpec.from_lines([pattern])
            except ValueError as error:
                raise UserError(
                    f"{self.where}: `{pattern}` is no pattern that a .gitignore takes; write for "
                    "example `tests/` or `models/*_mtp.py`."
                ) from error
        return GitIgnoreSpec.from_lines(self.patterns)


def _below(file: PythonFile, base: Path) -> str:
    """The path that the patterns see; a file elsewhere is taken from its argument's root."""
    if file.path.is_relative_to(base):
        return file.path.relative_to(base).as_posix()
    return file.relative
