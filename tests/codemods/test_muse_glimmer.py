"""The main job's decisions on the released files, site by site."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from normport.codemods.analyze import Options, find_sites, plan
from normport.codemods.edit import apply_plan
from normport.tools.tree import SourceTree

pytestmark = pytest.mark.release

PATH = "vllm/model_executor/models/muse_glimmer.py"
RELEASES = ["0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]

TARGETS = {
    "qk_norm": "RMSNorm(self.head_dim, eps=config.rms_norm_eps, has_weight=False)",
    "input_layernorm": "GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)",
    "post_attention_layernorm": "GemmaRMSNorm(config.hidden_size, eps=config.post_norm_eps)",
    "pre_feedforward_layernorm": "GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)",
    "post_feedforward_layernorm": "GemmaRMSNorm(config.hidden_size, eps=config.post_norm_eps)",
    "embed_norm": "RMSNorm(config.hidden_size, eps=config.rms_norm_eps, has_weight=False)",
    "norm": "RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=torch.float32)",
    "perception_emb_norm": (
        "RMSNorm(text_config.hidden_size, eps=text_config.rms_norm_eps, has_weight=False)"
    ),
}


@pytest.mark.parametrize("version", RELEASES)
def test_every_site(release: Callable[[str], SourceTree], version: str) -> None:
    source = (release(version).root / PATH).read_bytes()
    sites = find_sites(source, PATH)
    assert {site.attribute: site.target for site in sites} == TARGETS
    assert {site.verdict for site in sites} == {"convert"}
    unsafe = find_sites(source, PATH, Options(unsafe=True))
    assert {site.attribute: site.target for site in unsafe} == TARGETS | {
        "norm": "RMSNorm(config.hidden_size, eps=config.rms_norm_eps)"
    }
    result = apply_plan(source, plan(source, sites))
    assert result.removed == ("MuseGlimmerRMSNorm",)
    assert b"MuseGlimmerRMSNorm" not in result.source
    again = find_sites(result.source, PATH)
    assert {site.verdict for site in again} == {"done"}
    assert len(again) == len(TARGETS)
    assert apply_plan(result.source, plan(result.source, again)).source == result.source
