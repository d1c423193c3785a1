"""NP230 to NP239: RMS norms that stand where no construction could be replaced."""

from __future__ import annotations

from normport.codemods.registry import changed, refusal

_FUNCTION = """\
import torch
from torch import nn


def rms(x, weight, eps):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * weight.float()).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.eps = config.rms_norm_eps
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x):
        return self.proj(rms(x, self.weight, self.eps))
"""
_CALL = "return self.proj(rms(x, self.weight, self.eps))"
_DEFINITION = _FUNCTION[_FUNCTION.index("def rms") : _FUNCTION.index("class Layer")]
_INLINE = """\
h = self.proj(x).float()
        variance = h.square().mean(-1, keepdim=True)
        h = h * torch.rsqrt(variance + self.eps)
        return self.proj((h * self.weight).to(x.dtype))"""
_OF_ANOTHER = """\
h = x.float()
        scale = torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        return torch.sigmoid(self.proj(h) * scale)"""

_CLASS = """\
import torch
from torch import nn


class LocalNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float()).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = LocalNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x):
        return self.norm(x)
"""
_LOCAL = _CLASS[_CLASS.index("class LocalNorm") : _CLASS.index("class Layer")]
_FORWARD = _CLASS[_CLASS.index("        h = x.float") : _CLASS.index("\n\nclass Layer")]


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(True))


_METHOD = _indented(_DEFINITION.rstrip()).replace("(x, w", "(self, x, w")
_TORCH = """\
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.size = config.hidden_size
        self.norm = nn.RMSNorm((config.heads, config.head_dim))

    def forward(self, x):
        return self.norm(x)
"""

RULES = (
    refusal(
        "NP230",
        "an RMS norm is written as a function",
        "A function has no layer that vLLM could dispatch per device. Build the standard layer in "
        "the constructor of whoever calls it, give it the parameter's name in the checkpoint, and "
        "call that. One finding for each call, or one at the function when nothing in the file "
        "calls it.",
        changed(_FUNCTION),
        changed(_FUNCTION, (_CALL, "return self.proj(x)")),
        changed(
            _FUNCTION,
            (_DEFINITION, ""),
            (
                "    def forward",
                _indented(_DEFINITION.rstrip()).replace("(x, w", "(self, x, w")
                + "\n\n    def forward",
            ),
            ("rms(x, self", "self.rms(x, self"),
        ),
        do="build the standard layer in the constructor and call that here",
    ),
    refusal(
        "NP231",
        "an RMS norm is written inline",
        "vLLM cannot dispatch an expression in the middle of a forward. Build the standard layer "
        "in the constructor and call that.",
        changed(_FUNCTION, (_DEFINITION, ""), (_CALL, _INLINE)),
        do="build the standard layer in the constructor and call that here",
    ),
    refusal(
        "NP232",
        "torch.nn.RMSNorm is built in a way that the standard layer has no match for",
        "It normalises over several dimensions, or puts its weight on a device of its own, or "
        "decides at run time whether it has a weight.",
        changed(_TORCH),
        changed(
            _TORCH,
            (
                "(config.heads, config.head_dim)",
                "config.head_dim, elementwise_affine=config.affine",
            ),
        ),
        do="leave it, or build it over one dimension and with a weight or without one",
    ),
    refusal(
        "NP233",
        "torch.nn.functional.rms_norm is called",
        "The function is no layer that vLLM could dispatch per device. Build RMSNorm in the "
        "constructor, with has_weight=False where no weight is passed, and call that. Without an "
        "eps the function uses float32's machine epsilon, 1.1920928955078125e-07.",
        changed(
            _TORCH,
            ("        self.norm = nn.RMSNorm((config.heads, config.head_dim))\n", ""),
            ("self.norm(x)", "self.proj(F.rms_norm(x, (self.size,)))"),
        ),
        do="build RMSNorm in the constructor and call that here",
    ),
    refusal(
        "NP234",
        "the class is nested, local or conditional",
        "Its name means the class in one place or in one case only, so that its constructions are "
        "not all seen. Move it to the top of the file, outside of any condition.",
        changed(_CLASS, (_LOCAL, "if torch.cuda.is_available():\n\n" + _indented(_LOCAL))),
        do="move it to the top of the file, outside of any condition",
    ),
    refusal(
        "NP235",
        "the class normalises in another method than forward",
        "Whoever dispatches to that method (a CustomOp, or code that calls it by name) gives the "
        "class a meaning beside nn.Module's. Declare the standard layer, which is dispatched per "
        "device, in its place.",
        changed(
            _CLASS,
            ("(nn.Module):\n    def __init__(self, dim", "(CustomOp):\n    def __init__(self, dim"),
            ("def forward(self, x):\n        h", "def forward_native(self, x):\n        h"),
            ("from torch import nn\n", "from torch import nn\n\nfrom ops import CustomOp\n"),
        ),
        changed(_CLASS, ("def forward(self, x):\n        h", "def __call__(self, x):\n        h")),
        do="declare the standard layer in its place",
    ),
    refusal(
        "NP236",
        "the class inherits from torch.nn.RMSNorm",
        "What torch's class does is not in this file. Inherit from vLLM's RMSNorm, or declare that "
        "where the class is built.",
        changed(
            _CLASS,
            (_LOCAL, "class LocalNorm(nn.RMSNorm):\n    pass\n\n\n"),
        ),
        do="inherit from vLLM's RMSNorm, or declare that where this class is built",
    ),
    refusal(
        "NP237",
        "the root multiplies something else than what was squared",
        "A projection of the input is scaled by the input's root mean square, or the root is "
        "handed on and what it multiplies is not seen. No standard layer returns the root.",
        changed(_FUNCTION, (_DEFINITION, ""), (_CALL, _OF_ANOTHER)),
        do="leave it as it is",
    ),
    refusal(
        "NP238",
        "the class leaves its computation to a kernel",
        "It hands its input and weight to a function that is an RMS norm by its name, whose "
        "computation is not read. Where the kernel computes what a standard layer does, declare "
        "that layer: it has kernels of its own.",
        changed(
            _CLASS,
            ("import torch\n", "import torch\nfrom flashinfer.norm import rmsnorm\n"),
            (_FORWARD, "        return rmsnorm(x, self.weight, self.eps)\n"),
        ),
        do="declare RMSNorm or GemmaRMSNorm in its place if that is what the kernel computes",
    ),
    refusal(
        "NP239",
        "the class inherits from a standard layer and computes something else",
        "Its own forward hides the layer's from vLLM's per-device dispatch.",
        changed(
            _CLASS,
            (
                "class LocalNorm(nn.Module)",
                "class LocalNorm(RMSNorm)",
            ),
            (
                "from torch import nn\n",
                "from torch import nn\nfrom vllm._custom_ops import rms_norm\n"
                "from vllm.model_executor.layers.layernorm import RMSNorm\n",
            ),
            (_FORWARD, "        return rms_norm(x, self.weight, self.eps)\n"),
        ),
        do="drop its forward if the layer computes the same, else leave it",
    ),
)
