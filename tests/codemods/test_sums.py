"""Sums of squares that are means, epsilons that are tensors, and rarer ways to write a norm."""

from __future__ import annotations

import pytest
from norms import BUILD, HEAD, MODEL, NEW, RETURN, changed, converted, refused, sites

MEAN = "h.pow(2).mean(-1, keepdim=True)"
NORMALISE = f"h = h * torch.rsqrt({MEAN} + self.eps)"
OWN = changed(MODEL, ("self.eps = eps\n", "self.eps = eps\n        self.dim = dim\n"))
SUM = "h.pow(2).sum(-1, keepdim=True)"


@pytest.mark.parametrize(
    "mean",
    [
        *(f"{SUM} / self.dim", f"{SUM} / x.shape[-1]", f"{SUM} / h.size(-1)"),
        *(f"{SUM}.div(x.size()[-1])", "(h * h).sum(dim=-1, keepdim=True) / float(h.shape[-1])"),
        *(f"{SUM} / self.weight.shape[0]", f"{SUM} / self.weight.size(-1)"),
    ],
)
def test_a_sum_divided_by_its_size_is_a_mean(mean: str) -> None:
    assert NEW in converted(changed(OWN, (MEAN, f"({mean})")))


@pytest.mark.parametrize(
    "root",
    [
        "torch.rsqrt(h.pow(2).mean(-1)[..., None] + self.eps)",
        "torch.rsqrt(h.pow(2).mean(-1)[..., torch.newaxis] + self.eps)",
        "torch.rsqrt(h.pow(2).mean(-1).unsqueeze(-1) + self.eps)",
        "torch.rsqrt(torch.mean(h * h, dim=-1).unsqueeze(dim=-1) + self.eps)",
        "torch.rsqrt(h.pow(2).sum(-1)[..., None] / self.dim + self.eps)",
        "(h.pow(2).mean(-1) + self.eps).rsqrt()[..., None]",
        "torch.unsqueeze((h.pow(2).mean(-1) + self.eps).float() ** -0.5, -1)",
    ],
)
def test_a_dimension_that_is_given_back(root: str) -> None:
    assert NEW in converted(changed(OWN, (NORMALISE, f"h = h * {root}")))


@pytest.mark.parametrize(
    "root",
    [
        "torch.rsqrt(h.pow(2).mean(-1)[:, None] + self.eps)",
        "torch.rsqrt(h.pow(2).mean(-1).unsqueeze(1) + self.eps)",
        "torch.rsqrt(h.pow(2).mean(-1) + self.eps)",
        "torch.rsqrt(h.pow(2).mean(0)[..., None] + self.eps)",
        "torch.rsqrt((h.pow(2).mean(-1) + h[..., 0])[..., None] + self.eps)",
        "torch.rsqrt(h.pow(2).mean(-1, keepdim=True)[..., None] + self.eps)",
    ],
)
def test_a_dimension_that_is_not_given_back_at_the_end(root: str) -> None:
    assert refused(changed(OWN, (NORMALISE, f"h = h * {root}")))[0] == "NP210"


@pytest.mark.parametrize(
    ("mean", "why"),
    [
        (SUM, "it takes the root of the sum of squares, not of their mean;"),
        (f"{SUM} / 128", "it divides the sum of squares by 128, and nothing shows that this is"),
        (f"{SUM} * (1.0 / self.dim)", "it scales the sum of squares, and that this averages"),
        (f"{SUM} / x.shape[0]", "it scales the sum of squares, and that this averages them is"),
        (f"{SUM} / (x + 1).shape[-1]", "by `(x + 1).shape[-1]`, the size of another tensor, and"),
        ("h.pow(2).sum(0, keepdim=True) / self.dim", "over something else than the last dimension"),
    ],
)
def test_a_sum_that_may_be_no_mean(mean: str, why: str) -> None:
    code, reason = refused(changed(OWN, (MEAN, f"({mean})")))
    assert code == "NP210"
    assert why in reason


def test_nothing_shows_the_size_of_a_weightless_norm() -> None:
    bare = changed(
        OWN,
        ("        self.weight = nn.Parameter(torch.ones(dim))\n", ""),
        ("(h * self.weight.float())", "h"),
        (MEAN, f"({SUM} / self.dim)"),
    )
    assert "by its `dim` (config.size), and nothing shows" in refused(bare)[1]


@pytest.mark.parametrize(
    ("eps", "before"),
    [
        ("torch.tensor(1e-6)", ""),
        ("torch.tensor(1e-6).to(config.device)", ""),
        ("torch.full((), 1e-6) * 2", ""),
        ("EPS", "EPS = torch.tensor(1e-6)\n\n\n"),
        ("-EPS if config.odd else EPS", "EPS = torch.tensor(1e-6)\n\n\n"),
    ],
)
def test_a_tensor_for_an_epsilon(eps: str, before: str) -> None:
    source = changed(MODEL, (HEAD, HEAD + before), (BUILD, BUILD.replace("config.eps", eps)))
    code, reason = refused(source)
    assert code == "NP210"
    assert f"its epsilon `{eps}` is a tensor, and a standard layer takes a number" in reason
    torch_own = changed(
        source, (BUILD.replace("config.eps", eps), f"self.norm = nn.RMSNorm(8, eps={eps})")
    )
    (site,) = [site for site in sites(torch_own.encode()) if site.norm == "torch.nn.RMSNorm"]
    assert (site.code, site.verdict) == ("NP232", "refuse")


@pytest.mark.parametrize("eps", ["torch.finfo(torch.float32).eps", "float(config.eps)"])
def test_a_number_that_torch_gives(eps: str) -> None:
    assert f"eps={eps}" in converted(changed(MODEL, (BUILD, BUILD.replace("config.eps", eps))))


@pytest.mark.parametrize(
    ("head", "root"),
    [
        ("from torch import rsqrt as rq\n", f"rq({MEAN} + self.eps)"),
        ("from torch import mean as average\n", "torch.rsqrt(average(h * h, -1, True) + self.eps)"),
        ("", f"getattr(torch, 'rsqrt')({MEAN} + self.eps)"),
        ("", f"torch.pow({MEAN} + self.eps, exponent=-0.5)"),
        ("", f"({MEAN} + self.eps) ** -5e-1"),
        ("", f"(1.0 / torch.sqrt({MEAN} + self.eps))"),
        ("", f"(1 / ({MEAN} + self.eps).sqrt())"),
        ("", f"({MEAN} + self.eps) ** -00.5"),
    ],
)
def test_roots_and_means_by_other_names(head: str, root: str) -> None:
    source = changed(MODEL, (HEAD, HEAD.rstrip() + f"\n{head}\n\n"), (NORMALISE, f"h = h * {root}"))
    assert NEW in converted(source)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "h = h * torch.rsqrt(torch.nanmean(h * h, -1, keepdim=True) + self.eps)",
            "it makes the mean of squares with nanmean, which no standard layer does; write x.pow",
        ),
        (
            "h = h * torch.rsqrt((h * h).nansum(-1, keepdim=True) / self.dim + self.eps)",
            "with nansum, which",
        ),
        (
            "v = torch.einsum('...d,...d->...', h, h)[..., None] / self.dim\n"
            "        h = h * torch.rsqrt(v + self.eps)",
            "with einsum, which",
        ),
        (
            "h = h * (torch.linalg.vecdot(h, h)[..., None] / self.dim + self.eps).rsqrt()",
            "with vecdot, which",
        ),
        (f"h = h * torch.float_power({MEAN} + self.eps, -0.5)", "calls that are not followed"),
        (f"h = h * torch.exp(-0.5 * torch.log({MEAN} + self.eps))", "calls that are not followed"),
        ("h = F.normalize(h, dim=-1) * self.dim**0.5", "with no epsilon in the mean of squares;"),
        ("h = self.scale * F.normalize(h, dim=-1)", "with no epsilon in the mean of squares;"),
        (
            "v = h.norm(2, dim=-1, keepdim=True) * self.dim ** (-1.0 / 2)\n"
            "        h = h / (v + self.eps)",
            "it divides by the length of its input, to which it adds an epsilon, and multiplies",
        ),
        (
            "h = h / (torch.linalg.vector_norm(h, dim=-1, keepdim=True) / math.sqrt(h.shape[-1]))",
            "it divides by the length of its input and multiplies by a root of the size",
        ),
        (
            "h = h / (torch.norm(h, dim=-1, keepdim=True) ** 2 / self.dim + self.eps) ** 0.5",
            "calls that are not followed",
        ),
    ],
)
def test_norms_of_other_parts_are_found_and_refused(body: str, why: str) -> None:
    own = changed(
        OWN,
        ("import torch\n", "import math\nimport torch\nimport torch.nn.functional as F\n"),
        ("self.dim = dim\n", "self.dim = dim\n        self.scale = math.sqrt(dim)\n"),
    )
    code, reason = refused(changed(own, (NORMALISE, body)))
    assert code == "NP210"
    assert why in reason


@pytest.mark.parametrize(
    "body",
    [
        "h = F.normalize(h, dim=-1)",
        "h = h / h.norm(dim=-1, keepdim=True)",
        "h = h / (h.norm(dim=-1, keepdim=True) + self.eps) * self.learned",
        "h = torch.einsum('...d,...d->...d', h, h) / self.dim",
    ],
)
def test_vectors_of_length_one_are_no_rms_norm(body: str) -> None:
    source = changed(
        MODEL,
        ("import torch\n", "import torch\nimport torch.nn.functional as F\n"),
        (NORMALISE, body),
        (RETURN, f"{RETURN} * 2**0.5"),
    )
    assert sites(changed(source, (" * 2**0.5", "")).encode()) == []


@pytest.mark.parametrize(
    ("use", "why"),
    [
        ("return getattr(F, 'rms_norm')(x, (8,))", "the call normalises without a layer"),
        ("norm = F.rms_norm\n    return norm(x, (8,))", "it is passed on as a value here"),
        ("return getattr(F, 'rms_norm', None)(x, (8,))", "the call normalises without a layer"),
    ],
)
def test_torch_functional_that_is_not_called_by_name(use: str, why: str) -> None:
    source = f"import torch.nn.functional as F\n\n\ndef run(x):\n    {use}\n"
    (site,) = sites(source.encode())
    assert (site.code, site.norm) == ("NP233", "torch.nn.functional.rms_norm")
    assert why in (site.reason or "")


@pytest.mark.parametrize("name", ["rms_norm", "_fused_rms_norm"])
def test_torch_operators_that_are_called_themselves(name: str) -> None:
    source = f"import torch\n\n\ndef run(x, y):\n    return torch.ops.aten.{name}(x + y, [8])\n"
    (site,) = sites(source.encode())
    assert (site.code, site.norm) == ("NP233", f"torch.ops.aten.{name}")


def test_a_weight_that_starts_as_zeros_without_an_offset() -> None:
    told = "The local weight starts as zeros, RMSNorm's as ones; a checkpoint overwrites both."
    for rounded in ((), ((RETURN, "return self.weight * h.to(x.dtype)"),)):
        (site,) = sites(changed(MODEL, ("torch.ones", "torch.zeros"), *rounded).encode())
        assert site.verdict == "convert"
        assert (site.reason or "").endswith(told)
        (site,) = sites(changed(MODEL, *rounded).encode())
        assert told not in (site.reason or "")
