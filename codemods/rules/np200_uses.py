"""NP207 to NP220: norms that could be converted but for how they are built and used."""

from __future__ import annotations

from normport.codemods.registry import changed, refusal

_NORM = """\
import torch
from torch import nn


class LocalNorm(nn.Module):
    def __init__(self, dim=None, eps=1e-6, with_scale=True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if with_scale else None

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            h = h * self.weight.float()
        return h.to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = LocalNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x):
        return self.norm(x)
"""
_BUILD = "self.norm = LocalNorm(config.hidden_size, eps=config.rms_norm_eps)"
_CALL = "return self.norm(x)"
_END = "        return h.to(x.dtype)\n"
_METHOD = """
    def scale(self):
        return self.weight
"""


RULES = (
    refusal(
        "NP207",
        "the size of a weightless norm cannot be inferred",
        "RMSNorm needs the true size of the normalised dimension, and nothing in the class says "
        "what flows into this norm. Give it with --dim CLASS.attribute=EXPR.",
        changed(
            _NORM, (_BUILD, "self.norm = LocalNorm(eps=config.rms_norm_eps, with_scale=False)")
        ),
        do="give its size with --dim CLASS.attribute=EXPR",
    ),
    refusal(
        "NP208",
        "a call passes or expects something else than the standard layer does",
        "The standard layers read a second argument as a residual and return a tuple only then. "
        "They multiply in the weight's dtype: a class that multiplies in its input's gives other "
        "numbers as soon as a call converts the input to another dtype than the run's.",
        changed(_NORM, (_CALL, "return self.norm(x, x)")),
        changed(_NORM, (_CALL, "y, _ = self.norm(x)\n        return y")),
        changed(
            _NORM,
            ("h = h * self.weight.float()", "h = h.to(x.dtype) * self.weight"),
            ("        return h.to(x.dtype)\n", "        return h\n"),
            (_CALL, "return self.norm(x.float())"),
        ),
        do="pass the input alone and take back the one tensor, or leave it",
    ),
    refusal(
        "NP209",
        "the calls of the norm are not seen",
        "The norm is stored or passed on where its calls cannot be followed, so that nobody "
        "knows what they pass.",
        changed(_NORM, (_CALL, "return run(self.norm, x)")),
        changed(
            _NORM,
            ("self.norm = LocalNorm(", "self.norms = nn.ModuleList([LocalNorm("),
            (
                "eps)\n\n    def forward(self, x):\n        return self.norm(x)",
                "eps)])\n\n    def forward(self, x):\n        return run(self.norms, x)",
            ),
        ),
        do="store it in an attribute of self and call that",
    ),
    refusal(
        "NP211",
        "the class is more than a plain nn.Module",
        "A decorator, another base class or a type check gives the class a meaning that the "
        "standard layer does not have.",
        changed(_NORM, ("class LocalNorm(nn.Module)", "class LocalNorm(Base)")),
        changed(_NORM, (_CALL, "assert isinstance(self.norm, LocalNorm)\n        " + _CALL)),
        changed(_NORM, ("class LocalNorm", "@register\nclass LocalNorm")),
        changed(
            _NORM, ("        return h.to(x.dtype)\n", "        return h.to(x.dtype)\n" + _METHOD)
        ),
        changed(_NORM, ("class Layer(", "ALL_NORMS.append(LocalNorm)\n\n\nclass Layer(")),
        do="make it a plain nn.Module if nothing needs the rest, else leave it",
    ),
    refusal(
        "NP212",
        "the class does something beside its norm",
        "The class goes with its last construction, and with it whatever its constructor or its "
        "forward does beside storing its arguments, making its weight and normalising: a weight "
        "loader, a buffer, a print or a log, an assert, a hook, an attribute that forward sets.",
        changed(
            _NORM,
            ("self.eps = eps\n", "self.eps = eps\n        watch(self)\n"),
        ),
        changed(_NORM, ("h = x.float()\n", "print(x.shape)\n        h = x.float()\n")),
        changed(_NORM, ("h = x.float()\n", "self.last = x\n        h = x.float()\n")),
        do="take that out of the class if nothing needs it, else leave it",
    ),
    refusal(
        "NP214",
        "code elsewhere reads something of the norm",
        "An attribute or method of the local class is used outside of it; the standard layer may "
        "lack it or mean something else by it.",
        changed(_NORM, (_CALL, "return x * self.norm.eps")),
        changed(
            _NORM,
            (_END, _END + _METHOD),
            (
                _CALL,
                "return scaled(self.norm)\n\n\ndef scaled(norm):\n    return norm.scale()",
            ),
        ),
        do="read that from the configuration, or leave the norm",
    ),
    refusal(
        "NP215",
        "the construction cannot be bound to the constructor",
        "Its arguments are spread with * or **, or do not fit.",
        changed(_NORM, (_BUILD, "self.norm = LocalNorm(*config.norm_arguments)")),
        do="write the arguments out as the constructor names them",
    ),
    refusal(
        "NP219",
        "nothing in the file constructs the class",
        "Without a construction there is nothing to replace; other files may construct it.",
        changed(_NORM, (_BUILD, "self.norm = nn.Identity()")),
        do="remove it if nothing uses it, else scan the files that do together with this one",
    ),
    refusal(
        "NP220",
        "other files import the class",
        "A class that several files use is converted in all of them or in none.",
        do="scan the files that use it together with this one",
    ),
    refusal(
        "NP221",
        "a name has more than one meaning",
        "The class, one of its methods or a name it uses is bound more than once in the file, so "
        "that its text does not say what runs.",
        changed(
            _NORM, ("class Layer(", "if FAST:\n    from fast import LocalNorm\n\n\nclass Layer(")
        ),
        do="give each meaning a name of its own",
    ),
    refusal(
        "NP222",
        "the norm is built or converted in a way that a standard layer does not bear",
        "A standard layer is built while a vLLM config is set, which is sure in a constructor "
        "only; and converting the module to another dtype would round a float32 weight.",
        changed(
            _NORM,
            (
                _CALL,
                "self.late = LocalNorm(8)\n        return self.late(x)",
            ),
            (_BUILD, "self.late = None"),
        ),
        changed(_NORM, (_BUILD, _BUILD + "\n        self.to(config.dtype)")),
        do="build it in __init__, in the dtype that it is to have",
    ),
    refusal(
        "NP301",
        "the numbers differ",
        "The local norm and its replacement were run on the same inputs and differ by more than "
        "the bound.",
        do="leave it, since the layer would change the model's numbers",
    ),
    refusal(
        "NP302",
        "the edit would lose something",
        "A comment, an import's effect or a name would be lost or shadowed.",
        do="move out what would be lost, or make this change by hand",
    ),
)
