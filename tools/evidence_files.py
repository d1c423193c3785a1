"""Result files of the evidence tools: read with one clear sentence, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from errno import EISDIR
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in ``path``; ``what`` says in a message what the file should be."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); name {what}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); name {what}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object; name {what}.")
    return value


def write_texts(texts: Mapping[Path, str]) -> None:
    """Put each text in place of what its file held.

    A reader sees the old or the new, whole; where one cannot be written, all stay as they were.
    """
    drafts = {path: path.with_name(f".{path.name}.{os.getpid()}.new") for path in texts}
    at = next(iter(texts))
    try:
        for path, text in texts.items():
            at = path
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
            drafts[path].write_text(text, encoding="utf-8")
        for path, draft in drafts.items():
            at = path
            draft.replace(path)
    except OSError as error:
        raise UserError(
            f"{at} cannot be written ({error.strerror or error}); name another place."
        ) from error
    finally:
        for draft in drafts.values():
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """``value`` as indented JSON, the same bytes for the same value; see ``write_texts``."""
    write_texts({path: as_json(value)})


def as_json(value: Any) -> str:
    """``value`` as the evidence tools write JSON: indented, ASCII, without NaN."""
    return json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
