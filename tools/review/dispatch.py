"""Which path a norm takes on each device, before and after the series.

Worked out from what vLLM's sources say of its releases 0.28 to 0.33: ``CustomOp``'s choice of a
method, the IR's order of providers on each platform, and what the provider ``vllm_c`` declines.
``tests/review/test_review_facts.py`` asks the releases themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import InvalidVersion, Version

from normport.tools.devices import STAND_IN_RUN, VENDORS
from normport.tools.manifest import Manifest
from normport.tools.review.sites import Site

Layer = Literal["local", "rms", "float32", "gemma", "unknown"]
Device = Literal["CPU", "CUDA", "XPU", "MUSA"]

DEVICES: tuple[Device, ...] = ("CPU", "CUDA", "XPU", "MUSA")
FIRST, LAST = Version("0.28"), Version("0.33")

EAGER_PROVIDERS: dict[Device, tuple[str, ...]] = {
    "CPU": ("native",),
    "CUDA": ("vllm_c", "native"),
    "XPU": ("vllm_c", "native"),
    "MUSA": ("native",),
}
"""The IR's order of providers in eager mode; compiled, every platform has ``native`` alone.

MUSA is a platform outside of vLLM's tree, for which vLLM's own default is written here."""

NAMES: dict[Layer, str] = {
    "local": "model-local norm",
    "rms": "RMSNorm, weight of the run's dtype or none",
    "float32": "RMSNorm with a float32 weight",
    "gemma": "GemmaRMSNorm",
    "unknown": "another layer",
}

NATIVE, FUSED, UNKNOWN = "native ops", "fused by Inductor", "not known"
APART = "each norm's own path, the sum apart"

SANDWICH = "NP5"
"""How the rules begin whose sites are a norm, a sum and a norm."""


@dataclass(frozen=True)
class Path:
    """What runs. kernel: whether it is a device's kernel. note: when it is another."""

    runs: str
    kernel: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One device. known: how it is known."""

    device: Device
    eager: tuple[Path, Path]
    compiled: tuple[Path, Path]
    known: str

    @property
    def changes(self) -> tuple[bool, bool]:
        """Whether something else runs after the series, eager and compiled."""
        return self.eager[0].runs != self.eager[1].runs, (
            self.compiled[0].runs != self.compiled[1].runs
        )


@dataclass(frozen=True)
class Group:
    """Sites that change from one kind of layer to another, and so share their paths."""

    title: str
    before: str
    after: str
    sites: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Dispatch:
    """The whole table. problem: why there is none, one sentence."""

    groups: tuple[Group, ...]
    problem: str | None = None


@dataclass(frozen=True)
class Converted:
    """A site and the patch it is in. earlier: what the series makes of it before, if it does."""

    site: Site
    patch: str
    earlier: Site | None = None


def dispatch_table(manifest: Manifest, sites: Sequence[Converted]) -> Dispatch:
    """The paths of the layers that the series changes or gives a dispatch."""
    if not known_release(manifest.release):
        which = f"vLLM {manifest.release}" if manifest.release else "a release that is not told"
        return Dispatch(
            (),
            f"The series is for {which}, whose dispatch normport does not know; it knows that of "
            f"{FIRST} to {LAST}.",
        )
    there = _ships_gemma(manifest)
    brings = any("GemmaRMSNorm.forward_xpu" in f.adds for p in manifest.patches for f in p.files)
    gemma = (there, there or brings)
    found: dict[tuple[Layer, Layer, str | None, str], list[Converted]] = {}
    singles = [one for one in sites if not one.site.code.startswith(SANDWICH)]
    for one in singles:
        before = layer(one.earlier.new) if one.earlier else "local"
        vendor = _vendor(one.site.path)
        key = (before, layer(one.site.new), vendor, one.patch if one.earlier else "")
        found.setdefault(key, []).append(one)
    groups = []
    if brings:
        groups.append(
            Group(
                "Every GemmaRMSNorm of vLLM",
                NAMES["gemma"],
                "GemmaRMSNorm with forward_xpu",
                (),
                tuple(_row(d, "gemma", "gemma", gemma, _known(d, None)) for d in DEVICES),
            )
        )
    for (before, after, vendor, patch), members in found.items():
        paths = {one.site.path for one in members}
        tried = {(manifest.release, path) for path in paths} == {STAND_IN_RUN} and not patch
        groups.append(
            Group(
                f"{NAMES[before]} to {NAMES[after]}" + (f" ({patch})" if patch else ""),
                NAMES[before],
                NAMES[after],
                tuple(f"{one.site.path.rpartition('/')[2]}: {one.site.name}" for one in members),
                tuple(
                    _row(device, before, after, gemma, _known(device, tried))
                    for device in (DEVICES if vendor is None else ("CUDA",))
                ),
            )
        )
    together = [one for one in sites if one.site.code.startswith(SANDWICH)]
    for patch in dict.fromkeys(one.patch for one in together):
        groups.append(_sandwiches(manifest, patch, [o for o in together if o.patch == patch]))
    return Dispatch(tuple(groups))


def _sandwiches(manifest: Manifest, patch: str, members: Sequence[Converted]) -> Group:
    """What becomes one layer, ``NormAddNorm``. It brings no kernel, only the place for one."""
    run = any((manifest.release, one.site.path) == STAND_IN_RUN for one in members)
    model = STAND_IN_RUN[1].rpartition("/")[2]
    rows = []
    for device in DEVICES:
        after = Path(APART, note="NormAddNorm calls them; a platform may register its own class")
        known = _known(device, None if device == "CPU" else False)
        if device == "CPU":
            after = Path("NormAddNorm.forward_cpu", note="native ops, in fewer calls")
            if run:
                known = f"run: normport's tests run {model} with it in the CPU engine"
        compile_note = "" if device == "CPU" else "with custom_ops +norm_add_norm as in eager"
        rows.append(
            Row(device, (Path(APART), after), (Path(FUSED), Path(FUSED, note=compile_note)), known)
        )
    return Group(
        f"norm, sum and norm to NormAddNorm ({patch})",
        "norm, sum and norm",
        "NormAddNorm",
        tuple(
            f"{one.site.path.rpartition('/')[2]}: {one.site.norm.partition(':')[0]}"
            for one in members
        ),
        tuple(rows),
    )


def known_release(release: str | None) -> bool:
    """Whether what stands here is known of that release."""
    try:
        version = Version(release or "")
    except InvalidVersion:
        return False
    return FIRST <= Version(f"{version.major}.{version.minor}") <= LAST


def layer(target: str | None) -> Layer:
    """The kind of layer that a construction makes."""
    found = re.match(r"(?:\w+\.)*(\w+)\(", target or "")
    if found is None:
        return "unknown"
    if found[1] == "GemmaRMSNorm":
        return "gemma"
    if found[1] != "RMSNorm":
        return "unknown"
    return "float32" if "dtype=torch.float32" in (target or "") else "rms"


def eager(kind: Layer, device: Device, gemma_xpu: bool) -> Path:
    """What runs in eager mode. gemma_xpu: GemmaRMSNorm has its own method for XPU."""
    if kind == "unknown":
        return Path(UNKNOWN)
    if kind == "local":
        return Path(NATIVE, note="no dispatch sees it")
    if device == "MUSA":
        return Path(NATIVE, note="a plug-in may register its own layer in its place")
    if kind == "gemma" and device == "XPU" and gemma_xpu:
        return Path("_C.gemma_rms_norm", kernel=True, note="within its guards")
    if "vllm_c" not in EAGER_PROVIDERS[device]:
        return Path(NATIVE)
    if kind == "rms":
        return Path("_C.rms_norm", kernel=True)
    # Both hand the provider a float32 weight, which it takes with a float32 input alone.
    return Path(NATIVE, note="_C.rms_norm in float32 runs, whose weight has the input's dtype")


def compiled(kind: Layer, device: Device, gemma_xpu: bool) -> Path:
    """What runs with vLLM's default compilation, apart from its fusion passes."""
    if kind == "unknown":
        return Path(UNKNOWN)
    if kind == "gemma" and device == "XPU" and gemma_xpu:
        return Path(FUSED, note="_C.gemma_rms_norm with custom_ops +gemma_rms_norm")
    if kind != "local" and device == "MUSA":
        return Path(FUSED, note="a plug-in may set otherwise")
    return Path(FUSED)


def _row(device: Device, before: Layer, after: Layer, gemma: tuple[bool, bool], known: str) -> Row:
    return Row(
        device,
        (eager(before, device, gemma[0]), eager(after, device, gemma[1])),
        (compiled(before, device, gemma[0]), compiled(after, device, gemma[1])),
        known,
    )


def _known(device: Device, tried: bool | None) -> str:
    """How a row is known. tried: the engine tests run this model; None: that is no question."""
    if device == "CPU" and tried:
        return "run: normport's tests load the model into the CPU engine before and after"
    if device == "XPU" and tried in (True, None):
        return "simulated: run on a CPU with stand-ins of the kernels, no XPU was used"
    if device == "MUSA":
        return "read in vLLM's sources; what a MUSA plug-in adds is not known here"
    return "read in vLLM's sources, not run"


def _ships_gemma(manifest: Manifest) -> bool:
    """Whether the release has GemmaRMSNorm.forward_xpu of its own."""
    return any(
        one.name == "xpu-gemma-rms-norm-dispatch" and "already has" in one.reason
        for one in manifest.obsolete
    )


def _vendor(path: str) -> str | None:
    return next((VENDORS[part] for part in path.split("/")[:-1] if part in VENDORS), None)
