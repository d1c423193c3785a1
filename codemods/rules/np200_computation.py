"""NP201 to NP218: norms that compute something no standard layer computes."""

from __future__ import annotations

from normport.codemods.registry import changed, refusal

_NORM = """\
import torch
import torch.nn.functional as F
from torch import nn

from vllm.distributed import tensor_model_parallel_all_reduce


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
_PARAMETER = "self.weight = nn.Parameter(torch.ones(dim))"
_RETURN = "return (h * self.weight.float()).to(x.dtype)"
_NORMALISE = "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)"


RULES = (
    refusal(
        "NP201",
        "the norm subtracts the mean",
        "Subtracting the mean makes it a layer norm; RMSNorm and GemmaRMSNorm do not.",
        changed(_NORM, (_NORMALISE, "h = h - h.mean(-1, keepdim=True)\n        " + _NORMALISE)),
        do="leave it, or declare torch.nn.LayerNorm if that is what it computes",
    ),
    refusal(
        "NP202",
        "the norm works on groups of its input",
        "It reshapes its input and normalises each group; the standard layers normalise the whole "
        "last dimension.",
        changed(_NORM, ("h = x.float()", "h = x.float().reshape(*x.shape[:-1], 4, -1)")),
        do="leave it, or reshape first, normalise the groups with a weightless RMSNorm and "
        "multiply by the weight after it",
    ),
    refusal(
        "NP203",
        "the norm multiplies by a gate",
        "A gated norm is not RMSNorm or GemmaRMSNorm; vLLM has RMSNormGated for some of them, "
        "which this tool does not convert to.",
        changed(
            _NORM,
            ("def forward(self, x):\n        h", "def forward(self, x, gate=None):\n        h"),
            (_RETURN, "h = h * F.silu(x.float())\n        " + _RETURN),
        ),
        do="declare vLLM's RMSNormGated if it computes the same, else leave it",
    ),
    refusal(
        "NP204",
        "the norm adds a bias",
        "The standard layers have no bias parameter, so the checkpoint's would have no place.",
        changed(
            _NORM,
            (_PARAMETER, _PARAMETER + "\n        self.bias = nn.Parameter(torch.zeros(dim))"),
            (_RETURN, "return (h * self.weight.float() + self.bias.float()).to(x.dtype)"),
        ),
        do="leave it, or declare RMSNorm and add the bias, under its own key, where the norm is "
        "called",
    ),
    refusal(
        "NP205",
        "the variance is reduced over the tensor-parallel group",
        "Each rank holds a part of the normalised dimension; the standard layers see one rank.",
        changed(
            _NORM,
            (
                _NORMALISE,
                "var = tensor_model_parallel_all_reduce(h.pow(2).mean(-1, keepdim=True))\n"
                "        h = h * torch.rsqrt(var + self.eps)",
            ),
        ),
        do="leave it, since a standard layer would average over the part that one rank holds",
    ),
    refusal(
        "NP206",
        "the parameters are not those of the standard layer",
        "The checkpoint's keys and shapes must stay: one parameter `weight` of one dimension, in "
        "the dtype the standard layer stores it in.",
        changed(_NORM, ("self.weight", "self.scale")),
        changed(_NORM, (_PARAMETER, "self.weight = nn.Parameter(torch.ones(4, dim))")),
        do="leave it, or give it one parameter `weight` of one dimension and map the keys of the "
        "checkpoint in load_weights",
    ),
    refusal(
        "NP210",
        "the computation is not followed, or is not that of a standard norm",
        "What the class computes could not be read completely from its code, or was read and "
        "matches no standard layer; a guess would not be a proof.",
        changed(_NORM, (".mean(-1, keepdim=True)", ".sum(-1, keepdim=True)")),
        changed(_NORM, ("h = x.float()", "h = torch.fft.fft(x).real.float()")),
        do="leave it, or write x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) if meant",
    ),
    refusal(
        "NP213",
        "the offset added to the weight is neither 0 nor 1",
        "RMSNorm multiplies by the weight and GemmaRMSNorm by 1 + weight.",
        changed(_NORM, ("self.weight.float()", "(self.weight.float() + 0.5)")),
        do="leave it, or add the offset to the weight when it is loaded",
    ),
    refusal(
        "NP216",
        "the norm has a second input or returns a tuple",
        "The standard layers read a second argument as a residual that they add before they "
        "normalise, and return a tuple only then; a local class that means something else by it "
        "must be converted together with its calls.",
        changed(_NORM, (_RETURN, "return (h * self.weight.float()).to(x.dtype), h")),
        do="let forward take the input alone and return its norm alone, and keep the rest in the "
        "caller",
    ),
    refusal(
        "NP217",
        "the result is not in the input's dtype",
        "The standard layers return the input's dtype.",
        changed(_NORM, (_RETURN, "return h * self.weight.float()")),
        do="convert the result back to the input's dtype if the callers bear that, else leave it",
    ),
    refusal(
        "NP218",
        "the norm is not computed in float32",
        "The standard layers normalise in float32; in bf16 or fp16 the sum of squares loses most "
        "of its digits, so the numbers are not the same.",
        changed(_NORM, ("h = x.float()", "h = x"), (_RETURN, "return h * self.weight")),
        do="normalise in float32 if the model's numbers may change by that, else leave it",
    ),
)
