"""``port --with-norm-add-norm``, and the committed patch that it wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_sources import UNPROVEN, Command, commit_all, git

from normport.codemods.sandwich import find_sandwiches
from normport.tools.norm_add_norm import LAYER, layer_source
from normport.tools.tree import SourceTree

pytestmark = pytest.mark.release

PATCHES = Path(__file__).parents[2] / "patches"
MODELS = "vllm/model_executor/models"
CONVERTED = {
    "0.28.0": {"muse_glimmer", "gemma4", "gemma4_mtp"},
    "0.29.0": {"muse_glimmer", "gemma4", "gemma4_mtp"},
    "0.32.0": {"muse_glimmer", "gemma4", "gemma4_mtp", "embedding_gemma2"},
}


def entry(series: Path) -> dict[str, object]:
    manifest = json.loads((series / "manifest.json").read_text())
    found = {patch["file"]: patch for patch in manifest["optional"]}
    patch: dict[str, object] = found["optional/norm-add-norm.patch"]
    return patch


@pytest.mark.parametrize("version", CONVERTED)
def test_the_committed_patch_goes_on_top_of_the_series(
    folder: Path, release: Callable[[str], SourceTree], version: str
) -> None:
    root, series = release(version).root, PATCHES / version
    manifest = json.loads((series / "manifest.json").read_text())
    numbered = [series / patch["file"] for patch in manifest["patches"]]
    optional = entry(series)
    paths = [f["path"] for f in (*_files(manifest["patches"]), *_files([optional]))]
    top = folder / "checkout"
    for path in paths:
        if (root / path).is_file():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, top / path)
    commit_all(top)
    git(top, "am", "--keep-non-patch", *map(str, numbered))
    git(top, "am", "--keep-non-patch", str(series / "optional" / "norm-add-norm.patch"))
    assert (top / LAYER).read_bytes() == layer_source()
    for model in CONVERTED[version]:
        source = (top / MODELS / f"{model}.py").read_bytes()
        compile(source, model, "exec")
        assert b"self.norm_add_norm = NormAddNorm()" in source
        assert all(site.verdict == "refuse" for site in find_sandwiches(source))
    changed = {Path(f["path"]).stem for f in _files([optional]) if f["path"].startswith(MODELS)}
    assert changed == CONVERTED[version]
    evidence = optional["evidence"]
    assert isinstance(evidence, list)
    for place in evidence:
        results = [place["equivalence"][d] for d in ("float32", "float16", "bfloat16")]
        assert [result["max_ulp"] for result in results] == [0, 0, 0]
        assert all(result["differing"] == 0 for result in results)


def _files(patches: list[dict[str, object]]) -> list[dict[str, str]]:
    found = [patch["files"] for patch in patches]
    return [file for files in found if isinstance(files, list) for file in files]


def test_every_place_is_converted_or_named(
    folder: Path, normport: Command, release: Callable[[str], SourceTree]
) -> None:
    root = release("0.29.0").root
    names = ["muse_glimmer", "gemma3n", "hyperclovax", "exaone4"]
    only = [part for name in names for part in ("--only", name)]
    result = normport("port", root, *only, *UNPROVEN, "--out", "out", "--with-norm-add-norm")
    assert result.status == 0
    assert "norm(x) + residual: 1 made one layer call with the next norm, 10 left" in result.out
    manifest = json.loads(Path("out/manifest.json").read_text())
    left = manifest["evidence"]["norm-add-norm: left"]
    assert all(place["reason"].endswith(".") for place in left)
    codes = {(Path(place["path"]).stem, place["code"]) for place in left}
    assert {("gemma3n", "NP502"), ("hyperclovax", "NP502"), ("muse_glimmer", "NP506")} <= codes
    assert {("exaone4", "NP503"), ("exaone4", "NP506")} <= codes
    assert "Proof-" not in Path("out/optional/norm-add-norm.patch").read_text()
