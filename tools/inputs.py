"""From what the command line names to files, each with the configuration that holds for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from normport.tools.config import Config, config_for
from normport.tools.discover import PythonFile, discover
from normport.tools.findings import FileError
from normport.tools.plural import many
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
    """Files under one configuration; ``dims`` are its own, without those of the command line.

    config: its file. where: that and its table, for messages. notes: about what was left out.
    """

    files: tuple[PythonFile, ...]
    errors: tuple[FileError, ...]
    selection: Selection
    dims: Mapping[str, str]
    config: Path | None = None
    where: str = ""
    notes: tuple[str, ...] = ()


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
        found.append(_batch(config, new, errors, options, below))
    return found


def stdin_batch(filename: Path | None, options: Options) -> tuple[PythonFile, Batch]:
    """The source on stdin, and the batch that holds it unless it is excluded."""
    file = read_stdin(filename)
    return file, _batch(config_for(file.path.parent), [file], [], options, [])


def _batch(
    config: Config,
    files: Sequence[PythonFile],
    errors: Sequence[FileError],
    options: Options,
    paths: Sequence[Path],
) -> Batch:
    exclusion = config.exclusion(options.exclude)
    kept = exclusion.without(files, force=options.force)
    selection = config.selection(options.select, options.ignore)
    notes = [
        f"{exclusion.where} leaves out {what}."
        for what in _left_out(files, {file.path for file in kept}, paths)
    ]
    return Batch(
        tuple(kept),
        tuple(errors),
        selection,
        config.dims,
        config.path,
        config.where,
        tuple(notes),
    )


def _left_out(
    files: Sequence[PythonFile], kept: AbstractSet[Path], paths: Sequence[Path]
) -> Iterator[str]:
    """The folders of which nothing is kept, or all files where none is."""
    if files and not kept and not any(path.is_dir() for path in paths):
        yield many(len(files), "named file") if len(files) > 1 else files[0].path.name
        return
    for path in filter(Path.is_dir, paths):
        top = Path(os.path.abspath(path))
        below = [file for file in files if file.path.is_relative_to(top)]
        if below and kept.isdisjoint(file.path for file in below):
            yield f"{many(len(below), 'Python file')} below {path}, all there are"
