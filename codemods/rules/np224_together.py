"""NP224 to NP227: norms whose uses hang together with something that is not converted."""

from __future__ import annotations

from normport.codemods.registry import changed, refusal

_NORM = """\
import torch
from torch import nn


class LocalNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x, residual=None):
        h = x.float()
        if residual is not None:
            h = h + residual.float()
            residual = h.to(x.dtype)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        h = (h * self.weight.float()).to(x.dtype)
        if residual is None:
            return h
        return h, residual


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = LocalNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x, residual):
        x, residual = self.norm(x, residual)
        return x, residual
"""
_BUILD = "self.norm = LocalNorm(config.hidden_size, eps=config.rms_norm_eps)"
_CALL = "x, residual = self.norm(x, residual)"


RULES = (
    refusal(
        "NP224",
        "a type comment names the class",
        "Nothing reads a type comment but a type checker, to which the class would be missing or "
        "wrong; as an annotation it is changed with the rest.",
        changed(_NORM, (_BUILD, _BUILD + "  # type: LocalNorm")),
        do="write it as an annotation",
    ),
    refusal(
        "NP225",
        "the class is chosen or passed on as a value, and what is built from it is not seen",
        "Where a program decides which class it builds, every construction and every other choice "
        "must fit the standard layer too. Followed are a local variable, an entry of a dict that "
        "is looked up on the spot, and functools.partial, called where they stand.",
        changed(_NORM, (_BUILD, "self.norm = build(LocalNorm, config)")),
        do="construct it by its name",
    ),
    refusal(
        "NP226",
        "another construction that goes together with this one is refused",
        "A class that several files construct is converted in all of them or in none, and calls "
        "that change must suit everything that is stored under their name.",
        do="look at that construction first",
    ),
    refusal(
        "NP227",
        "the standard layer may add in place, and the call keeps what it passed",
        "The kernels behind the standard layers write the norm and the new residual into the "
        "tensors that they are given. A call whose results replace its arguments does not notice; "
        "any other one may read what has changed.",
        changed(_NORM, (_CALL, "y, z = self.norm(x, residual)")),
        changed(_NORM, (_CALL, "states.append(x)\n        " + _CALL)),
        do="store both results under the names of what was passed, or leave it",
    ),
)
