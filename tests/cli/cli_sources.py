"""Small model files, and what a run of the command gives back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentences import assert_actionable

MODEL = '''\
"""A model whose norms are its own."""

import torch
from torch import nn


class OffsetNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).type_as(x)


class Layer(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.first = OffsetNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.second = OffsetNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))
'''

SCALE = MODEL.replace("1.0 + self.weight", "self.weight").replace("OffsetNorm", "ScaleNorm")
"""Multiplies in float32: safe with a float32 weight, unsafe as plain RMSNorm."""

REFUSED = MODEL.replace("h = x.float()\n", "h = x.float()\n        h = h - h.mean(-1, True)\n")
"""Subtracts the mean, so no standard layer computes the same."""

WEIGHTLESS = """\
import torch
from torch import nn


class Bare(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class Layer(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.norm = Bare(eps=config.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)
"""

PLAIN = "def add(a, b):\n    return a + b\n"

UNPROVEN = ("--no-proof", "--allow-unproven")

BROKEN = MODEL.replace("def forward(self, x", "def forward(self x", 1)


@dataclass(frozen=True)
class Result:
    """What one run of the command printed and returned."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed as JSON; every refusal in it says what to do."""
        found = json.loads(self.out)
        for finding in found.get("findings", ()):
            if finding["verdict"] == "refuse":
                assert_actionable(finding["reason"])
        return found

    @property
    def error(self) -> str:
        """The only sentence on stderr, for a run that failed at once."""
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")


Command = Callable[..., Result]


def git(top: Path, *arguments: str, stdin: str | None = None) -> str:
    """Run git in ``top`` without anybody's configuration; fails loudly."""
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=top, input=stdin, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit_all(top: Path, names: Sequence[str] = (".",)) -> None:
    """Make ``top`` a repository that has everything in it committed."""
    git(top, "init", "--quiet")
    git(top, "add", "--force", *names)
    git(top, "commit", "--quiet", "--message=all")
