"""Lets a torchvision built for CUDA import beside a CPU build of torch.

Its compiled part does not load there, so the operators that its Python part refers to are missing
at import: fake implementations are registered for ``torchvision::nms`` and ``torchvision::qnms``,
and registering one for an unknown operator raises. This module, imported by a ``.pth`` file when a
process starts, declares the two schemas just before torchvision is first imported, and costs
nothing in processes that never do. The operators stay without an implementation: calls fail.

Only the test environment has it, and only where torchvision does not import by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
NAMES = ("nms", "qnms")

kept: list[object] = []
"""The library object: its declarations go when it is collected."""


class BeforeTorchvision:
    """A finder that finds nothing and only notices that torchvision is about to be imported."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(BeforeTorchvision)
            declare()
        return None


def declare() -> None:
    import torch

    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in NAMES:
        library.define(name + SCHEMA)
    kept.append(library)


sys.meta_path.insert(0, BeforeTorchvision)
