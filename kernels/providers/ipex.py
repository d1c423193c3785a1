"""Provider ``ipex``: intel-extension-for-pytorch's ``rms_norm``, for images that still have it.

The package ends the process when it is imported beside another torch than it was built for, so the
versions are compared first. Its norm wants a weight, multiplies in float32 and rounds once.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable

import torch
from torch import Tensor

from normport.kernels.guards import row_strides, why_not_input, why_not_weight
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm

DISTRIBUTION = "intel-extension-for-pytorch"
DEVICES = ("xpu", "cpu")


def why_not_version(extension: str, installed_torch: str) -> str | None:
    """CANNOT_LOAD unless both are of one minor release: 2.8.0 and 2.8.0+cpu, say."""
    wanted, found = (text.split(".")[:2] for text in (extension, installed_torch))
    return None if wanted == found else Reason.CANNOT_LOAD


def supported() -> str | None:
    """Whether the package is there and fits this torch."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return Reason.NOT_INSTALLED
    reason = why_not_version(version, torch.__version__)
    if reason is not None:
        return reason
    try:
        _function()
    except (ImportError, OSError):
        return Reason.CANNOT_LOAD
    except AttributeError:
        return Reason.OP_MISSING
    return None


@functools.cache
def _function() -> Callable[[Tensor, Tensor, float], Tensor]:
    package = importlib.import_module("intel_extension_for_pytorch")
    found: Callable[[Tensor, Tensor, float], Tensor] = package.llm.functional.rms_norm
    return found


def _guard(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> str | None:
    if weight is None:
        return Reason.WEIGHT_MISSING
    reason = why_not_input(x) or why_not_weight(x, weight)
    if reason is not None:
        return reason
    if x.device.type not in DEVICES:
        return Reason.OTHER_PLATFORM
    if variance_size is not None and variance_size != x.shape[-1]:
        return Reason.VARIANCE_SIZE
    if offset:
        return Reason.OFFSET
    return None if row_strides(x) is not None else Reason.LAYOUT


@rms_norm.provider("ipex", supported=supported, supports_args=_guard)
def _rms_norm(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
    offset: bool = False,
    wide: bool = False,
) -> Tensor:
    assert weight is not None
    return _function()(x.contiguous(), weight, epsilon)
