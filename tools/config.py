"""``[tool.normport]`` in ``pyproject.toml``: looked for from each argument upward, as ruff does."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.exclusion import Exclusion
from normport.tools.selection import EVERY_RULE, Selection, parse_codes

FILE = "pyproject.toml"
TABLE = "[tool.normport]"
KEYS = ("select", "ignore", "exclude", "dims")
# Where `tool` may be something else than a table of tables.
_TOOL = re.compile(
    rb"""^[ \t]*(?:\[\[[ \t]*["']?tool["']?[ \t]*\]\]|["']?tool["']?[ \t]*=)""", re.M
)


@dataclass(frozen=True)
class Config:
    """What one file says; nothing where there is none.

    path: the file. select: None when it does not say.
    dims: ``CLASS.attr`` -> source text, as ``--dim`` takes it.
    """

    path: Path | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    dims: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The file and its table, for messages."""
        return "" if self.path is None else f"{_shown(self.path)}, {TABLE}"

    def selection(self, select: Sequence[str] | None, ignore: Sequence[str] | None) -> Selection:
        """The rules once the command line has had its say.

        Its ``--select`` takes the place of all that the file says of rules; its ``--ignore`` alone
        adds to it.
        """
        left_out = parse_codes(ignore or (), "--ignore")
        if select is not None:
            return Selection(parse_codes(select, "--select"), left_out)
        chosen = EVERY_RULE.select if self.select is None else self.select
        return Selection(chosen, (*self.ignore, *left_out))

    def exclusion(self, exclude: Sequence[str] | None) -> Exclusion:
        """The files left out; ``--exclude`` takes the place of the file's patterns."""
        if exclude is not None:
            return Exclusion(tuple(exclude))
        if self.path is None:
            return Exclusion()
        return Exclusion(self.exclude, self.path.parent, f"{self.where} exclude")


def config_for(argument: Path) -> Config:
    """What the nearest ``pyproject.toml`` with a ``[tool.normport]`` says, at or above a path.

    Raises UserError for a file that cannot be read, a key that is none, or a value of another type.
    """
    path = Path(os.path.abspath(argument))
    for folder in (path, *path.parents):
        file = folder / FILE
        if file.is_file():
            table = _table(file)
            if table is not None:
                return _config(file, table)
    return Config()


def _table(path: Path) -> dict[str, Any] | None:
    """The table, or None when the file has none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{_shown(path)} cannot be read ({error.strerror or error}); check its permissions."
        ) from error
    if b"normport" not in data and not _TOOL.search(data):
        return None
    try:
        tool = tomllib.loads(data.decode()).get("tool", {})
    except UnicodeDecodeError as error:
        raise UserError(f"{_shown(path)} is not UTF-8; save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{_shown(path)} is no valid TOML ({error}); correct it.") from error
    except RecursionError as error:
        raise UserError(f"{_shown(path)} is nested too deeply to be read; correct it.") from error
    if not isinstance(tool, dict):
        raise UserError(
            f"{_shown(path)}: tool is no table, so nothing can be set in {TABLE}; correct it."
        )
    table = tool.get("normport")
    if "normport" in tool and not isinstance(table, dict):
        raise UserError(f"{_shown(path)}: tool.normport is no table; write {TABLE} on a line.")
    return table


def _config(path: Path, table: Mapping[str, Any]) -> Config:
    where = f"{_shown(path)}, {TABLE}"
    for key in table:
        if key not in KEYS:
            raise UserError(
                f"{where} has the key `{key}`, which normport does not know; the keys are "
                f"{', '.join(KEYS)}."
            )
    select = _texts(table, "select", where)
    return Config(
        path=path,
        select=None if select is None else parse_codes(select, f"{where} select"),
        ignore=parse_codes(_texts(table, "ignore", where) or (), f"{where} ignore"),
        exclude=tuple(_texts(table, "exclude", where) or ()),
        dims=_dims(table.get("dims", {}), where),
    )


def _texts(table: Mapping[str, Any], key: str, where: str) -> list[str] | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        example = '["tests/"]' if key == "exclude" else '["NP101"]'
        raise UserError(
            f"{where} {key} is no list of strings; write for example {key} = {example}."
        )
    return value


def _dims(value: object, where: str) -> dict[str, str]:
    """``"Layer.norm" = "config.head_dim"``; without the quotes TOML makes it a table in a table."""
    wrong = UserError(
        f"{where} dims is no table of sizes; write for example "
        'dims = { "Layer.norm" = "config.head_dim" }.'
    )
    if not isinstance(value, dict):
        raise wrong
    flat: dict[str, object] = {}
    for key, size in value.items():
        inner = (
            {f"{key}.{k}": v for k, v in size.items()} if isinstance(size, dict) else {key: size}
        )
        flat.update(inner)
    found: dict[str, str] = {}
    for key, size in flat.items():
        if isinstance(size, bool) or not isinstance(size, str | int):
            raise wrong
        found[key] = str(size)
    _check(found, where)
    return found


def _check(dims: Mapping[str, str], where: str) -> None:
    from normport.codemods.analyze import Options

    try:
        Options(dims=dict(dims))
    except ValueError as error:
        raise UserError(f'{where} dims: {error}; write for example "A.norm" = "size".') from error


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
