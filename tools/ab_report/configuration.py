"""What a benchmark result was measured with.

A result file does not say the tensor-parallel size or the precision, and the lengths only with
``--save-detailed``. They are taken from a ``cell.json`` beside it, which ``ab-run`` writes, else
from the file's own ``--metadata KEY=VALUE``, else they are unknown, and the report says so.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from normport.tools.ab_report.model import Key
from normport.tools.errors import UserError
from normport.tools.evidence_files import read_object

SIDECAR = "cell.json"

_TOO_MANY = 10**12
"""Beyond all tokens and requests of a benchmark."""


def is_finite(number: float) -> bool:
    """Whether ``number``, which JSON allows to be of any size, is one that can be reckoned with."""
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer larger than any float
        return False


def configuration(file: Path, value: dict[str, Any]) -> tuple[Key, frozenset[str]]:
    """What the result ``value`` in ``file`` was measured with, and which of its lengths are only
    the requests' rounded mean; UserError where it says nonsense."""
    sidecar = file.with_name(SIDECAR)
    said = {**value, **(read_object(sidecar, "a cell.json") if sidecar.is_file() else {})}
    parallel = said.get("tensor_parallel_size", said.get("tp"))
    precision = said.get("precision")
    batch = said.get("batch_size") or value.get("max_concurrency") or value.get("num_prompts")
    input_len, input_told = _length(file, said, "input_len", "input_lens", "total_input_tokens")
    output_len, output_told = _length(
        file, said, "output_len", "output_lens", "total_output_tokens"
    )
    told = {"input_len": input_told, "output_len": output_told}
    key = Key(
        model=str(said.get("model", value["model_id"])),
        input_len=input_len,
        output_len=output_len,
        tensor_parallel_size=_whole(parallel, file, "tensor_parallel_size"),
        precision=None if precision is None else str(precision),
        batch_size=_whole(batch, file, "batch_size"),
        num_prompts=_whole(value.get("num_prompts"), file, "num_prompts"),
        request_rate=_rate(file, value.get("request_rate")),
    )
    return key, frozenset(name for name, is_told in told.items() if not is_told)


def _length(
    file: Path, said: dict[str, Any], name: str, each: str, total: str
) -> tuple[int | None, bool]:
    """Tokens a request: as declared, else as all requests had them, else their rounded mean, which
    is not told but reckoned."""
    if name in said:
        return _whole(said[name], file, name), True
    lengths = said.get(each)
    if isinstance(lengths, list) and lengths and all(one == lengths[0] for one in lengths):
        return _whole(lengths[0], file, each), True
    amount = _whole(said.get(total), file, total)
    completed = _whole(said["completed"], file, "completed")
    return (round(amount / completed) if amount is not None and completed else None), False


def _whole(value: Any, file: Path, name: str) -> int | None:
    """A count, which ``--metadata`` makes a text; UserError where it is none."""
    if value is None:
        return None
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if type(number) is not int or not 0 <= number < _TOO_MANY:
        raise UserError(f"{file}: {name} is {str(value)[:40]!r}, not a whole number.")
    return number


def _rate(file: Path, value: Any) -> float | str | None:
    """Requests a second; vLLM writes ``inf`` as text, and JSON may hold it as a number."""
    if value is None or value == math.inf:
        return None if value is None else "inf"
    if isinstance(value, str):
        return value
    if type(value) not in (int, float) or not is_finite(value):
        raise UserError(f"{file}: request_rate is {str(value)[:40]!r}, not a number.")
    return float(value)
