"""Kernels, fusion passes and the standard layers are found and listed apart."""

from __future__ import annotations

import pytest

from normport.codemods.analyze import find_sites
from normport.codemods.model import Site

TRITON = "import triton\nimport triton.language as tl\n\n\n"


def sites(source: str) -> tuple[Site, ...]:
    compile(source, "m.py", "exec")
    return find_sites(source.encode(), "m.py")


KERNELS = {
    "triton": TRITON + "@triton.jit\ndef k(X, N, eps):\n    x = tl.load(X)\n"
    "    r = 1 / tl.sqrt(tl.sum(x * x, axis=0) / N + eps)\n    tl.store(X, x * r)\n",
    "triton in vLLM": "from vllm.triton_utils import tl, triton\n\n\n@triton.heuristics({})\n"
    "@triton.jit\ndef k(X, N, eps, OTHER: tl.constexpr):\n    x = tl.load(X)\n    if not OTHER:\n"
    "        x = x - tl.sum(x, axis=0) / N\n    var = tl.sum(x * x, axis=0) / N\n"
    "    tl.store(X, x * tl.rsqrt(var + eps))\n",
    "a loop": TRITON + "@triton.jit\ndef k(X, N, eps):\n    total = tl.zeros([1])\n"
    "    for i in range(0, N, 64):\n        x = tl.load(X + i)\n        total += tl.sum(x * x)\n"
    "    tl.store(X, tl.rsqrt(total / N + eps))\n",
    "cute": "import cutlass.cute as cute\n\n\nclass K:\n    @cute.kernel\n"
    "    def k(self, x, n, eps):\n        total = warp_sum(x)\n"
    "        x[0] = x[0] * cute.math.rsqrt(total / n + eps)\n",
    "tilelang": "import tilelang\nimport tilelang.language as T\n\n\n@tilelang.jit\n"
    "def k(n, eps):\n    s = T.alloc_fragment(1, T.float32)\n    with T.Kernel(n) as i:\n"
    "        s[0] = 0\n        for j in T.serial(n):\n            s[0] += x[i, j] * x[i, j]\n"
    "        s[0] = T.rsqrt(s[0] / n + eps)\n",
    "helion": "import torch\nimport helion\nimport helion.language as hl\n\n\n"
    "def baseline(x, eps):\n"
    "    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)\n\n\n"
    "@helion.kernel(autotune_baseline_fn=baseline)\ndef k(x, n, eps):\n"
    "    for tile in hl.tile(n):\n        s = x[tile].pow(2).sum(dim=-1)\n"
    "        x[tile] = x[tile] * torch.rsqrt(s * (1.0 / n) + eps)\n",
    "ptx": "from .dsl import asm\n\n\n@asm(float)\ndef k(total, eps):\n"
    "    code = '{ .reg .f32 m; div.rn.f32 m,$1,0f44c00000; add.f32 m,m,$2; '\n"
    "    return code + 'rsqrt.approx.f32 $0,m; }', '=f,f,f', (total, eps)\n",
}


@pytest.mark.parametrize("source", KERNELS.values(), ids=KERNELS)
def test_kernels(source: str) -> None:
    (site,) = sites(source)
    assert (site.code, site.norm.rsplit(".", 1)[-1], site.verdict) == ("NP401", "k", "refuse")
    assert site.apart


NO_KERNELS = {
    "a sum": "    r = tl.rsqrt(tl.sum(x * x) + 1e-6)\n",
    "layer norm": "    x = x - tl.sum(x, axis=0) / N\n"
    "    r = tl.rsqrt(tl.sum(x * x, axis=0) / N + eps)\n",
    "a deviation": "    m = tl.sum(x) / N\n    r = tl.sqrt(tl.sum(x * x) / N - m * m)\n",
}


@pytest.mark.parametrize("line", NO_KERNELS.values(), ids=NO_KERNELS)
def test_kernels_of_other_norms(line: str) -> None:
    source = (
        TRITON + f"@triton.jit\ndef k(X, N, eps):\n    x = tl.load(X)\n{line}    tl.store(X, r)\n"
    )
    assert sites(source) == ()


def test_a_launcher_is_no_kernel_and_no_norm() -> None:
    launcher = "\n\ndef rms_norm(x, eps):\n    k[(1,)](x, x.shape[-1], eps)\n    return x\n"
    assert [s.norm for s in sites(KERNELS["triton"] + launcher)] == ["k"]


@pytest.mark.parametrize("name", ["rms_norm", "gemma_rms_norm", "rms_norm_gated"])
def test_standard_layers(name: str) -> None:
    source = (
        "import torch\nfrom vllm.model_executor.custom_op import CustomOp\n\n\n"
        f'@CustomOp.register("{name}")\nclass Anything(CustomOp):\n'
        "    def forward_native(self, x):\n"
        "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)\n"
    )
    assert [(s.code, s.norm) for s in sites(source)] == [("NP403", "Anything")]
    other = source.replace(f'"{name}"', '"mixer_norm"')
    assert [(s.code, s.norm) for s in sites(other)] == [("NP235", "Anything")]


def test_variants_of_a_standard_layer() -> None:
    source = (
        "import torch\nfrom vllm.model_executor.layers.layernorm import RMSNorm\n\n\n"
        "class PlatformNorm(RMSNorm):\n    def forward_oot(self, x, residual=None):\n"
        "        return torch.ops.device.rms_norm(x, self.weight, self.variance_epsilon)\n"
    )
    assert [(s.code, s.apart) for s in sites(source)] == [("NP403", True)]
    model = source.replace("forward_oot", "forward")
    assert [(s.code, s.apart) for s in sites(model)] == [("NP239", False)]


def test_a_matcher_on_a_graph() -> None:
    source = (
        "from torch import fx\n\n\nclass Fuser:\n    def match(self, graph: fx.Graph):\n"
        '        return [node for node in graph.nodes if node.target == "rsqrt"]\n'
    )
    assert [(s.code, s.norm) for s in sites(source)] == [("NP402", "Fuser")]
    assert sites(source.replace("from torch import fx", "import fx")) == ()
