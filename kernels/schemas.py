"""The schemas of vllm-xpu-kernels that the XPU code is written for, and how they are compared.

An op whose schema changed may read its arguments in another order or write to other ones, so it is
reported and not called. What is registered is compared at the first use; what a wheel will register
can be read from the file, on a machine without the device.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch

from normport.kernels.reasons import Reason

XPU_SCHEMAS: Mapping[str, str] = {
    "rms_norm": "(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
    "fused_add_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()"
    ),
    "gemma_rms_norm": "(Tensor! result, Tensor! input, Tensor! weight, float epsilon) -> ()",
    "fused_add_gemma_rms_norm": (
        "(Tensor! input, Tensor! residual, Tensor! weight, float epsilon) -> ()"
    ),
}
"""Ops of ``torch.ops._C``, as vllm-xpu-kernels 0.1.14.1 declares them."""

_LIBRARY = "_C.abi3.so"
_NAME_ONE = "name a wheel of vllm-xpu-kernels, or the library in it"
# What zipfile raises for a damaged, an encrypted or an unknown kind of archive.
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, UnicodeDecodeError)


class UnreadableWheel(ValueError):
    """The file is no wheel or library with kernels; the message is one sentence for the user."""


def normalized(name: str, schema: str, namespace: str = "_C") -> str:
    """One spelling for all ways to write a schema: alias sets, spaces, defaults."""
    return str(torch._C.parse_schema(f"{namespace}::{name}{schema}"))


def registered_schema(name: str, namespace: str = "_C") -> str | None:
    """The normalized schema of ``torch.ops._C.<name>``, or None where it is not registered."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None or "default" not in packet.overloads():
        return None
    return str(packet.default._schema)


def why_not_schema(name: str, schema: str, namespace: str = "_C") -> str | None:
    """Why the op cannot be called: missing, or registered with another schema."""
    found = registered_schema(name, namespace)
    if found is None:
        return Reason.OP_MISSING
    return None if found == normalized(name, schema, namespace) else Reason.SCHEMA_MISMATCH


def why_not_registered(name: str, namespace: str = "_C") -> str | None:
    """``why_not_schema`` for an op of ``XPU_SCHEMAS``."""
    return why_not_schema(name, XPU_SCHEMAS[name], namespace)


def read_schemas(file: Path) -> dict[str, list[str]]:
    """The schema strings in a wheel's (or a library's) file, by the names in ``XPU_SCHEMAS``.

    An op that the file does not declare has an empty list; several strings are several overloads or
    libraries' leftovers. UnreadableWheel: there is no such file, or no ``_C.abi3.so`` in it.
    """
    content = _library(file)
    found: dict[str, list[str]] = {}
    for name in XPU_SCHEMAS:
        pattern = rb"(?<![\w:])(?:_C::)?" + name.encode() + rb"(\([ -~]*?\) -> [ -~]*?)\0"
        texts = {match.group(1).decode("ascii") for match in re.finditer(pattern, content)}
        found[name] = sorted(texts)
    return found


def compare_wheel(file: Path) -> dict[str, str | None]:
    """For each op that we call: None, or the reason why this wheel's would not be called."""
    reasons: dict[str, str | None] = {}
    for name, texts in read_schemas(file).items():
        wanted = normalized(name, XPU_SCHEMAS[name])
        if not texts:
            reasons[name] = Reason.OP_MISSING
        elif len(texts) == 1 and _parses_to(name, texts[0], wanted):
            reasons[name] = None
        else:
            reasons[name] = Reason.SCHEMA_MISMATCH
    return reasons


def _parses_to(name: str, text: str, wanted: str) -> bool:
    try:
        return normalized(name, text) == wanted
    except RuntimeError:  # what PyTorch's parser raises for text that is no schema
        return False


def _library(file: Path) -> bytes:
    try:
        if not zipfile.is_zipfile(file):
            content = file.read_bytes()
            if content[:4] != b"\x7fELF":
                raise UnreadableWheel(
                    f"{file} is neither a wheel nor a Linux library: {_NAME_ONE}."
                )
            return content
        with zipfile.ZipFile(file) as wheel:
            names = [name for name in wheel.namelist() if name.rpartition("/")[2] == _LIBRARY]
            if len(names) != 1:
                raise UnreadableWheel(
                    f"{file} holds {len(names)} files named {_LIBRARY}, not one: {_NAME_ONE}."
                )
            return wheel.read(names[0])
    except (OSError, *_BROKEN) as error:
        told = error.strerror if isinstance(error, OSError) else None
        raise UnreadableWheel(f"{file} cannot be read ({told or error}): {_NAME_ONE}.") from error
