"""The reference norms are vLLM 0.29.0's, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from normport.codemods.model import ProofCase
from normport.kernels import reference
from normport.tools.proof import prove
from normport.tools.sources import resolve
from normport.tools.tree import SourceTree

LOCAL = "from normport.kernels.reference import GemmaRMSNorm as Gemma, RMSNorm as Rms\n"
CASES = {
    "scale": ProofCase(LOCAL, "Rms(SIZE, EPS)", "RMSNorm(SIZE, EPS)", "scale"),
    "float32": ProofCase(
        LOCAL,
        "Rms(SIZE, EPS, dtype=torch.float32)",
        "RMSNorm(SIZE, EPS, dtype=torch.float32)",
        "scale",
    ),
    "weightless": ProofCase(
        LOCAL, "Rms(SIZE, EPS, has_weight=False)", "RMSNorm(SIZE, EPS, has_weight=False)", "none"
    ),
    "partial": ProofCase(
        LOCAL,
        "Rms(SIZE, EPS, var_hidden_size=SIZE // 2)",
        "RMSNorm(SIZE, EPS, var_hidden_size=SIZE // 2)",
        "scale",
    ),
    "gemma": ProofCase(LOCAL, "Gemma(SIZE, EPS)", "GemmaRMSNorm(SIZE, EPS)", "offset"),
}

# Runs where the tree's layers can be loaded: compares what one input does not show in the proof.
LAYERS = """
import inspect, sys
from pathlib import Path
import torch
from normport.kernels import reference
from normport.tools.source_norms import load_norms

norms = load_norms(Path(sys.argv[1]))
pairs = [(reference.RMSNorm, norms.rms_norm), (reference.GemmaRMSNorm, norms.gemma_rms_norm)]
generator = torch.Generator().manual_seed(7)
compared = 0
for mine, theirs in pairs:
    signatures = [inspect.signature(layer.__init__) for layer in (mine, theirs)]
    assert [
        [(p.name, p.default, p.kind) for p in signature.parameters.values()]
        for signature in signatures
    ][0] == [(p.name, p.default, p.kind) for p in signatures[1].parameters.values()], signatures
    variants = [{}]
    if mine is reference.RMSNorm:
        variants += [{"has_weight": False}, {"dtype": torch.float32}, {"var_hidden_size": 32}]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for options in variants:
            torch.set_default_dtype(dtype)
            layers = [layer(64, 1e-5, **options) for layer in (mine, theirs)]
            torch.set_default_dtype(torch.float32)
            assert [type(layer.weight) for layer in layers[:1]] == [type(layers[1].weight)]
            assert list(layers[0].state_dict()) == list(layers[1].state_dict())
            assert layers[0].weight.dtype == layers[1].weight.dtype
            assert torch.equal(layers[0].weight, layers[1].weight)
            weight = torch.randn(64, generator=generator)
            for layer in layers:
                layer.weight.data.copy_(weight)
            for rows in (0, 1, 7):
                x, residual = torch.randn(2, rows, 64, generator=generator).to(dtype)
                with torch.no_grad():
                    outs = [layer(x.clone(), residual.clone()) for layer in layers]
                    outs = [(*out, layer(x)) for out, layer in zip(outs, layers)]
                for a, b in zip(*outs, strict=True):
                    assert a.dtype == b.dtype == dtype
                    assert torch.equal(a, b)
                    compared += 1
print(compared)
"""


@pytest.fixture(scope="module")
def release() -> SourceTree:
    return resolve("vllm==0.29.0", note=lambda text: None)


@pytest.mark.release
def test_the_layers_are_bit_equal_to_the_release(release: SourceTree) -> None:
    results = dict(zip(CASES, prove(list(CASES.values()), release), strict=True))
    assert {name: result.status for name, result in results.items()} == dict.fromkeys(
        CASES, "equal"
    ), results


@pytest.mark.release
def test_signatures_parameters_and_residuals_are_the_release_s(release: SourceTree) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAYERS, str(release.root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, int(done.stdout or 0)) == (0, "", 5 * 3 * 3 * 3)


def test_the_weight_s_dtype_decides_where_it_rounds() -> None:
    x = torch.linspace(-3, 3, 640).view(10, 64).bfloat16()
    weight = torch.linspace(0.5, 1.5, 64).bfloat16()
    rounded_first = reference.rms_norm(x, weight, 1e-6)
    rounded_once = reference.rms_norm(x, weight.float(), 1e-6)
    wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(rounded_first, wide.bfloat16() * weight)
    assert torch.equal(rounded_once, (wide * weight.float()).bfloat16())
    assert not torch.equal(rounded_first, rounded_once)


def test_the_fused_add_normalises_the_unrounded_sum() -> None:
    x = torch.linspace(-3, 3, 640).view(10, 64).bfloat16()
    residual = torch.linspace(100, 90, 640).view(10, 64).bfloat16()
    out, total = reference.fused_add_rms_norm(x, residual, None, 1e-6)
    exact = x.float() + residual.float()
    assert torch.equal(total, exact.bfloat16())
    assert torch.equal(out, reference.rms_norm(exact, None, 1e-6).bfloat16())
    assert not torch.equal(out, reference.rms_norm(total, None, 1e-6))


def test_gemma_adds_one_in_float32() -> None:
    x = torch.linspace(-3, 3, 640).view(10, 64).half()
    weight = torch.linspace(-0.01, 0.01, 64).half()
    expected = reference.rms_norm(x, 1.0 + weight.float(), 1e-6)
    assert torch.equal(reference.gemma_rms_norm(x, weight, 1e-6), expected)
    out, total = reference.fused_add_gemma_rms_norm(x, torch.zeros_like(x), weight, 1e-6)
    assert torch.equal(out, expected)
    assert torch.equal(total, x)


def test_a_part_of_the_row_may_be_measured() -> None:
    x = torch.cat([torch.ones(2, 4), torch.full((2, 4), 100.0)], dim=-1)
    assert torch.allclose(reference.rms_norm(x, None, 0.0, variance_size=4), x)
    same = reference.RMSNorm(8, var_hidden_size=8)
    assert same.variance_size_override is None
