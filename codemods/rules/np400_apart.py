"""NP401 to NP403: RMS normalisation that is no model's, listed apart."""

from __future__ import annotations

from normport.codemods.registry import Example, refusal

_KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def _norm_kernel(x_ptr, w_ptr, out_ptr, eps, N: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + offsets).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / N + eps)
    tl.store(out_ptr + row * N + offsets, x * rstd * tl.load(w_ptr + offsets))
"""
_PASS = """\
import torch._inductor.pattern_matcher as pm
import vllm.ir.ops


class AddNormPattern:
    def register(self, pm_pass):
        def pattern(x, residual, weight):
            return vllm.ir.ops.rms_norm(x + residual, weight, 1e-6)

        pm.register_replacement(pattern, pattern, [], pm.fwd_only, pm_pass)
"""
_STANDARD = """\
import torch

from ..op import register_op


@register_op
def rms_norm(x, weight, epsilon):
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (h.to(weight.dtype) * weight).to(x.dtype)
"""

RULES = (
    refusal(
        "NP401",
        "a device kernel normalises",
        "A kernel is what a standard layer is dispatched to; no layer takes its place from the "
        "outside. It is counted apart from the models' norms.",
        Example(_KERNEL, None),
        do="nothing needs doing",
    ),
    refusal(
        "NP402",
        "a fusion pass or pattern matcher looks for norms",
        "It computes no norm for a model: it finds one in a graph and puts another in its place. "
        "It is counted apart from the models' norms.",
        Example(_PASS, None),
        do="nothing needs doing",
    ),
    refusal(
        "NP403",
        "a standard norm layer, op or provider is defined here",
        "This is what the models' norms are moved onto. It is counted apart from them.",
        Example(_STANDARD, None),
        do="nothing needs doing",
    ),
)
