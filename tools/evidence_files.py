"""Result files of the evidence tools: read with one clear sentence, written whole or not at all."""

from __future__ import annotations

import json
import os
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
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); name {what}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object; name {what}.")
    return value


def write_text_file(path: Path, text: str) -> None:
    """Put ``text`` in place of what ``path`` held; a reader sees the old or the new, whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); name another file."
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """``value`` as indented JSON, the same bytes for the same value."""
    write_text_file(path, json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n")
