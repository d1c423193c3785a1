"""The page as a file: complete, self-contained, and nothing in a series is markup on it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from probe_records import measured, simulation
from review_series import COMMITTED, HOSTILE, MODEL, Page, Run, hostile_series, read, result

from normport.tools.manifest import load
from normport.tools.series import write_series
from normport.tools.tree import FileChange, Patch, SourceTree

MANIFEST = json.loads((COMMITTED / "manifest.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def committed(pages: dict[str, Path]) -> Page:
    return read(pages["committed"])


@pytest.fixture(scope="module")
def hostile(pages: dict[str, Path]) -> Page:
    return read(pages["hostile"])


def test_everything_of_the_series_is_there(committed: Page) -> None:
    text = " ".join(committed.text.split())
    manifest = load(COMMITTED)
    for entry in (*manifest.patches, *manifest.optional):
        assert entry.subject in text
        assert entry.file in text
        for paragraph in entry.reason.split("\n\n"):
            assert " ".join(paragraph.replace("`", "").split()) in text.replace("`", "")
        for file in entry.files:
            assert file.path in text
            assert file.after in text
        for site in entry.evidence or ():
            assert f"line {site['line']}" in text
            assert site["target"] in text
    for left in MANIFEST["evidence"]["left"]:
        assert f"{left['path']}:{left['line']}" in text
        assert " ".join(left["reason"].replace("`", "").split()) in text
    verdicts = [
        element["data-verdict"] for _, element in committed.elements if "data-verdict" in element
    ]
    assert sorted(set(verdicts)) == ["apart", "dispatch", "refused", "safe", "unsafe"]


def test_numbers_of_the_proof_are_those_of_the_manifest(committed: Page) -> None:
    text = " ".join(committed.text.split())
    proof = MANIFEST["optional"][0]["evidence"][0]["equivalence"]
    assert f"{proof['bfloat16']['differing']:,} (21.61%)" in text
    assert proof["bfloat16"]["worst"] in text
    names = [svg["aria-label"] or "" for svg in committed.all("svg")]
    wanted = "; ".join(
        f"{bucket} ulp: {proof['float16']['histogram'][bucket]:,}"
        for bucket in ("0", "1", "2-4", "5-16")
    )
    assert any(name.startswith("float16") and name.endswith(wanted) for name in names)


def test_old_norms_are_read_from_the_diff(committed: Page) -> None:
    text = " ".join(committed.text.split())
    assert (
        "MuseGlimmerRMSNorm(config.hidden_size, eps=config.rms_norm_eps, weight_offset=1)" in text
    )
    for attribute in ("qk_norm", "embed_norm", "norm", "perception_emb_norm"):
        assert f"bit-equal {attribute} NP10" in text


def test_the_page_needs_and_reaches_nothing(pages: dict[str, Path], committed: Page) -> None:
    for _, attributes in committed.elements:
        assert not {"src", "srcset", "action", "style", "onclick", "onload"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
    source = pages["committed"].read_text("utf-8")
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|https?://", source)
    policy = next(m["content"] or "" for m in committed.all("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_ids_are_unique_and_links_lead_somewhere(committed: Page) -> None:
    ids = [attributes["id"] for _, attributes in committed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in committed.all("a"):
        assert (link["href"] or "").removeprefix("#") in ids


def test_hostile_text_stays_text(hostile: Page) -> None:
    tags = [tag for tag, _ in hostile.elements]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert not any(name.startswith("on") for _, found in hostile.elements for name in found)
    assert hostile.text.count(HOSTILE) >= 10
    assert "⟦U+202E⟧" in hostile.text
    assert "⟦byte FF⟧" in hostile.text
    unseen = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
    assert not unseen.search(hostile.text)
    assert not unseen.search(str([attributes for _, attributes in hostile.elements]))


def test_forms_and_float32_checkpoints_have_tables(hostile: Page) -> None:
    text = " ".join(hostile.text.split())
    assert "called as norm(x) with 4-D input" in text
    assert "a float32 checkpoint served in a narrower dtype" in text
    assert "3 (0.3%)" in text
    assert "a rule of another normport" in text
    assert "NP103, line 7 at most 1 ulp; 1 with a float32 checkpoint" in text


def test_what_is_only_equal_for_some_checkpoints_is_said_first(committed: Page) -> None:
    text = " ".join(committed.text.split())
    assert (
        "8 norms in 1 model file become standard layers. Old and new gave the same bits for every "
        "input of the proof, where the checkpoint's dtype is the run's; a float32 checkpoint "
        "served in a narrower dtype differs by up to 1 ulp. The proof compares the native "
        "implementations on a CPU, not the devices' kernels."
    ) in text


def test_the_same_series_gives_the_same_bytes(
    tmp_path: Path, normport: Run, no_cache: None, pages: dict[str, Path]
) -> None:
    assert normport("review", COMMITTED, "--html", tmp_path / "x.html")[0] == 0
    assert (tmp_path / "x.html").read_bytes() == pages["committed"].read_bytes()


def test_the_path_is_said_last(tmp_path: Path, normport: Run, no_cache: None) -> None:
    series = hostile_series(tmp_path)
    page = series / "review.html"
    assert normport("review", series, "--html", page) == (0, f"review: {page}\n", "")
    assert load(series)  # a page in the folder does not disturb the series
    assert sorted(path.name for path in series.iterdir()) == [
        "0001-evil-standard-norms.patch",
        "manifest.json",
        "review.html",
    ]


def sentence(result: tuple[int, str, str]) -> str:
    """The one sentence of a run that failed."""
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.endswith(".\n")
    assert err.count("\n") == 1
    return err


def damage_missing(series: Path) -> None:
    (series / "manifest.json").unlink()


def damage_json(series: Path) -> None:
    (series / "manifest.json").write_text("{")


def damage_patch(series: Path) -> None:
    next(series.glob("*.patch")).unlink()


def damage_edited(series: Path) -> None:
    path = next(series.glob("*.patch"))
    path.write_bytes(path.read_bytes() + b"x")


def edited(series: Path, key: str, value: object) -> None:
    manifest = json.loads((series / "manifest.json").read_text("utf-8"))
    site = manifest["patches"][0]["evidence"][0]
    if value is None:
        del site[key]
    else:
        site[key] = value
    (series / "manifest.json").write_text(json.dumps(manifest))


def damage_computes(series: Path) -> None:
    edited(series, "computes", {"weight": "scale"})


def damage_line(series: Path) -> None:
    edited(series, "line", None)


def damage_equivalence(series: Path) -> None:
    edited(series, "equivalence", {"float32": {"max_ulp": 0}})


def damage_sum(series: Path) -> None:
    edited(series, "equivalence", {"float32": result() | {"elements": 999}})


def damage_evidence(series: Path) -> None:
    manifest = json.loads((series / "manifest.json").read_text("utf-8"))
    manifest["evidence"] = []
    (series / "manifest.json").write_text(json.dumps(manifest))


DAMAGES = {
    damage_missing: "holds no manifest.json",
    damage_json: "is not a manifest that normport wrote",
    damage_patch: "cannot be read (No such file or directory)",
    damage_edited: "was edited since normport wrote it",
    damage_computes: "holds evidence that this normport does not understand",
    damage_line: "holds evidence that this normport does not understand",
    damage_equivalence: "holds evidence that this normport does not understand",
    damage_sum: "holds evidence that this normport does not understand",
    damage_evidence: "holds evidence that this normport does not understand",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_broken_series_is_one_sentence_and_no_page(
    tmp_path: Path, normport: Run, no_cache: None, damage: Callable[[Path], None]
) -> None:
    series = hostile_series(tmp_path)
    damage(series)
    page = tmp_path / "page.html"
    page.write_text("the page of before")
    before = sorted(os.listdir(tmp_path))
    assert DAMAGES[damage] in sentence(normport("review", series, "--html", page))
    assert page.read_text() == "the page of before"
    assert sorted(os.listdir(tmp_path)) == before


def test_where_a_page_cannot_go(tmp_path: Path, normport: Run, no_cache: None) -> None:
    series = shutil.copytree(COMMITTED, tmp_path / "series")
    before = {path: path.read_bytes() for path in series.rglob("*") if path.is_file()}

    def refused(page: Path) -> str:
        return sentence(normport("review", series, "--html", page))

    assert "is a folder" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is no plain file" in refused(tmp_path / "pipe")
    assert "make it first" in refused(tmp_path / "none" / "page.html")
    assert "name of a part of a series" in refused(series / "manifest.json")
    assert "name of a part of a series" in refused(
        series / "0001-xpu-gemma-rms-norm-dispatch.patch"
    )
    assert "holds no manifest.json" in sentence(
        normport("review", tmp_path / "none", "--html", tmp_path / "x.html")
    )
    assert {path: path.read_bytes() for path in series.rglob("*") if path.is_file()} == before


def test_a_link_stays_one(tmp_path: Path, normport: Run, no_cache: None) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    assert normport("review", COMMITTED, "--html", tmp_path / "link.html")[0] == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")


def test_a_write_that_fails_leaves_the_page_of_before(
    tmp_path: Path, normport: Run, no_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    series, page = hostile_series(tmp_path), tmp_path / "page.html"
    page.write_text("the page of before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    err = sentence(normport("review", series, "--html", page))
    assert "cannot be written (No space left on device)" in err
    assert page.read_text() == "the page of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "series"]


def test_without_a_cache_other_releases_are_unknown(committed: Page) -> None:
    text = " ".join(committed.text.split())
    for version in ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"):
        assert f"--against vllm=={version} fetches and tries them" in text


def test_against_a_checkout(tmp_path: Path, normport: Run, no_cache: None) -> None:
    checkout = tmp_path / "checkout"
    (checkout / MODEL).parent.mkdir(parents=True)
    (checkout / "vllm" / "__init__.py").write_text("")
    (checkout / MODEL).write_text("class Other: pass\n")
    series, page = hostile_series(tmp_path), tmp_path / "page.html"
    assert normport("review", series, "--html", page, "--against", checkout)[0] == 0
    text = " ".join(read(page).text.split())
    assert f"{checkout} conflict 0001-evil-standard-norms.patch" in text
    missing = sentence(
        normport("review", series, "--html", tmp_path / "y.html", "--against", tmp_path / "none")
    )
    assert "none" in missing
    assert not (tmp_path / "y.html").exists()


def test_a_series_without_norms_or_evidence(tmp_path: Path, normport: Run, no_cache: None) -> None:
    tree = SourceTree(tmp_path, None, "x", git=False, writable=False)
    change = FileChange("vllm/x.py", b"a = 1\n", b"a = 2\n")
    write_series(tmp_path / "series", tree, [Patch("x", "X", "Why.", (), (change,), "Then.")])
    page = tmp_path / "page.html"
    assert normport("review", tmp_path / "series", "--html", page)[0] == 0
    text = " ".join(read(page).text.split())
    assert "No norm is converted." in text
    assert "a release that is not told, whose dispatch normport does not know" in text
    assert "Made from sources that are in no commit." in text


def test_a_probe_is_shown_with_what_it_is_evidence_of(
    normport: Run, no_cache: None, tmp_path: Path
) -> None:
    series = hostile_series(tmp_path)
    page = tmp_path / "page.html"
    for content, there, not_there in (
        (simulation(), "xpu: SIMULATION", "measured on"),
        (measured(), "measured on Data Center GPU, 2026-11-30", "which says nothing of"),
    ):
        (tmp_path / "probe.json").write_text(json.dumps(content))
        assert normport("series", "evidence", series, tmp_path / "probe.json")[0] == 0
        assert normport("review", series, "--html", page)[0] == 0
        text = read(page).text
        assert there in text
        assert not_there not in text
        assert "gemma_rms_norm at most 3 ulp on dense rows" in " ".join(text.split())
        assert "not called: it is registered with another schema" in text
    assert "1.75 [1.50, 2.00]" in text


def test_a_probe_that_was_made_to_say_otherwise_is_an_error(
    normport: Run, no_cache: None, tmp_path: Path
) -> None:
    series = hostile_series(tmp_path)
    manifest = series / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"simulated": true', '"simulated": false'))
    status, out, err = normport("review", series, "--html", tmp_path / "page.html")
    assert (status, out) == (2, "")
    assert "holds evidence of a device that normport did not write" in err
    assert not (tmp_path / "page.html").exists()
