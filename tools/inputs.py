"""From what the command line names to files, each with the configuration that holds for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normport.tools.config import Config, config_for
from normport.tools.discover import PythonFile, discover
from normport.tools.findings import FileError
from normport.tools.selection import Selection
from normport.tools.standard_input import read_stdin


@dataclass(frozen=True)
class Options:
    """What the command line says of files and rules; None where it says nothing.

    force: exclude also files that were named one by one.
    """

    select: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    force: bool = False


@dataclass(frozen=True)
class Batch:
    """Files under one configuration; ``dims`` are its own, without those of the command line."""

    files: tuple[PythonFile, ...]
    errors: tuple[FileError, ...]
    selection: Selection
    dims: Mapping[str, str]


def batches(paths: Sequence[Path], options: Options) -> list[Batch]:
    """The files below ``paths``, each once: one batch unless several pyproject.toml are at work.

    Raises UserError for a configuration or an option that cannot be read.
    """
    by_config: dict[Path | None, tuple[Config, list[Path]]] = {}
    for path in paths:
        config = config_for(path)
        by_config.setdefault(config.path, (config, []))[1].append(path)
    found: list[Batch] = []
    seen: set[Path] = set()
    for config, below in by_config.values():
        files, errors = discover(below)
        new = [file for file in files if file.path not in seen]
        seen.update(file.path for file in new)
        found.append(_batch(config, new, errors, options))
    return found


def stdin_batch(filename: Path | None, options: Options) -> tuple[PythonFile, Batch]:
    """The source on stdin, and the batch that holds it unless it is excluded."""
    file = read_stdin(filename)
    return file, _batch(config_for(file.path.parent), [file], [], options)


def _batch(
    config: Config, files: Sequence[PythonFile], errors: Sequence[FileError], options: Options
) -> Batch:
    kept = config.exclusion(options.exclude).without(files, force=options.force)
    selection = config.selection(options.select, options.ignore)
    return Batch(tuple(kept), tuple(errors), selection, config.dims)
