"""What a commit message claims, by what the patch declares and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from normport.codemods.model import Site
from normport.tools.backport import BackportResult
from normport.tools.devices import NATIVE_ONLY, where_it_matters
from normport.tools.messages import rewrite_subject, unsafe_subject
from normport.tools.tree import SourceTree

MODEL = "vllm/model_executor/models/some.py"
GEMMA, BARE = "GemmaRMSNorm(8, eps=eps)", "RMSNorm(8, eps=eps, has_weight=False)"
PLAIN, WIDE = "RMSNorm(8, eps=eps)", "RMSNorm(8, eps=eps, dtype=torch.float32)"


def said(
    *targets: str, path: str = MODEL, status: str = "obsolete", release: str = "0.30.0"
) -> str:
    tree = SourceTree(Path("/"), release, "vllm", git=False, writable=False)
    sites = [
        Site(1, 1, "NP", "Local", f"norm{number}", None, "convert", target, None)
        for number, target in enumerate(targets)
    ]
    found = BackportResult(status, "")  # type: ignore[arg-type]
    return " ".join(where_it_matters(sites, path, tree, found, proven=True))


@pytest.mark.parametrize(
    ("path", "rewrite"),
    [
        (MODEL, "[Model] Declare standard norm layers in some"),
        (
            "vllm/models/dots3_note/nvidia/vision_attention.py",
            "[Model] Use standard norms in dots3_note/nvidia/vision_attention",
        ),
        (
            f"vllm/models/{'long' * 9}/folder/file.py",
            "[Model] Declare standard norm layers in folder/file",
        ),
    ],
)
def test_a_subject_fits_into_a_line(path: str, rewrite: str) -> None:
    assert rewrite_subject(path) == rewrite
    assert len(rewrite) <= 72
    assert len(unsafe_subject(path)) <= 72


def test_a_subject_fits_whatever_the_name() -> None:
    assert len(rewrite_subject(f"vllm/models/{'x' * 200}.py")) == 72


@pytest.mark.parametrize(
    ("targets", "kernels"),
    [
        ((GEMMA,), {"_C.gemma_rms_norm"}),
        ((BARE,), {"_C.rms_norm"}),
        ((PLAIN,), {"_C.rms_norm"}),
        ((GEMMA, PLAIN, WIDE), {"_C.gemma_rms_norm", "_C.rms_norm"}),
        ((WIDE,), set()),
    ],
)
def test_only_kernels_that_the_layers_reach_are_named(
    targets: tuple[str, ...], kernels: set[str]
) -> None:
    text = said(*targets)
    assert {name for name in ("_C.gemma_rms_norm", "_C.rms_norm") if f"`{name}`" in text} == kernels
    assert text.startswith("On XPU this changes" if kernels else "Nothing changes in float16")
    assert ("no kernel takes an RMSNorm whose weight" in text) == (WIDE in targets)
    assert text.count(NATIVE_ONLY) == 1


def test_where_the_gemma_dispatch_comes_from() -> None:
    assert "with the first patch of this series" in said(GEMMA, status="needed")
    assert "which vLLM 0.30.0 ships" in said(GEMMA)


def test_a_file_of_one_vendor_claims_nothing_on_xpu() -> None:
    text = said(PLAIN, path="vllm/models/some/nvidia/vision.py")
    assert text.startswith("This file serves NVIDIA devices only.")
    assert "XPU" not in text


def test_stand_ins_are_claimed_only_where_they_ran() -> None:
    muse = "vllm/model_executor/models/muse_glimmer.py"
    assert "stand-ins" in said(GEMMA, path=muse, release="0.29.0")
    for text in (said(GEMMA, path=muse), said(GEMMA, release="0.29.0")):
        assert "No XPU was at hand." in text
        assert "stand-ins" not in text
