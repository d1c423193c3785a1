"""What the commit messages say about devices: which kernel a converted norm now reaches."""

from __future__ import annotations

from collections.abc import Sequence

from normport.codemods.model import Site
from normport.tools.backport import BackportResult
from normport.tools.tree import SourceTree

VENDORS = {"nvidia": "NVIDIA", "amd": "AMD"}
"""Folders of model files that serve one vendor's devices only."""

STAND_IN_RUN = ("0.29.0", "vllm/model_executor/models/muse_glimmer.py")
"""The release and model file whose XPU dispatch the engine tests run with stand-ins."""

NATIVE_ONLY = "The proof compares the native implementations, not the devices' kernels."


def where_it_matters(
    sites: Sequence[Site],
    path: str,
    tree: SourceTree,
    dispatch: BackportResult,
    *,
    proven: bool,
) -> list[str]:
    """What the patch changes on XPU and on other devices; see vLLM's ``custom_ops``.

    proven: whether there is a proof whose reach is to be named.

    vLLM's kernels want the weight of RMSNorm in the input's dtype (``supports_args`` of
    ``vllm_c`` and of the other providers in ``vllm/kernels``).
    """
    vendor = next((VENDORS[part] for part in path.split("/")[:-1] if part in VENDORS), None)
    gemma = [site for site in sites if (site.target or "").startswith("GemmaRMSNorm(")]
    wide = [site for site in sites if _keeps_float32(site)]
    plain = [site for site in sites if site not in gemma and site not in wide]
    declined = (
        "no kernel takes an RMSNorm whose weight has another dtype than its input, so the native "
        "ops run as before; the standard layer only makes the norm visible to the dispatch."
    )
    kernels = bool(gemma or plain)
    reach = f" {NATIVE_ONLY}" if proven else ""
    if vendor is not None:
        first = f"This file serves {vendor} devices only."
        if kernels:
            first += " In eager mode they may now take their kernel for these layers."
        if wide:
            first += f" In float16 and bfloat16 {_those(wide, kernels)}{declined}"
        return [first + reach]
    paragraphs = []
    tried = (tree.version, path) == STAND_IN_RUN
    at_hand = "No XPU was at hand" + (
        ": the dispatch was run with stand-ins of the kernels on a CPU." if tried else "."
    )
    if kernels:
        ops = [name for name, some in (("gemma_rms_norm", gemma), ("rms_norm", plain)) if some]
        enabled = ", ".join(["none", *(f"+{name}" for name in ops)])
        paragraphs.append(
            f"On XPU this changes eager execution: {listed(_eager(gemma, plain, tree, dispatch))}."
            " In the default compile mode Inductor fuses the norms as it did before; a layer's own "
            f"dispatch runs there only when it is enabled as well (custom_ops: {enabled}). "
            f"{at_hand}"
        )
        if wide:
            paragraphs.append(
                f"{listed(abouts(wide))}: in float16 and bfloat16 nothing changes on XPU: "
                f"{declined}"
            )
        paragraphs.append(
            "In eager mode CUDA and ROCm, too, may now take their kernels for "
            f"these layers{f', except for {listed(abouts(wide))}' if wide else ''}.{reach}"
        )
    else:
        paragraphs.append(
            f"Nothing changes in float16 and bfloat16, on XPU or elsewhere: {declined} In float32 "
            f"a device may take its kernel.{reach} {at_hand}"
        )
    return paragraphs


def _eager(
    gemma: Sequence[Site], plain: Sequence[Site], tree: SourceTree, dispatch: BackportResult
) -> list[str]:
    """What runs a kernel in eager mode on XPU, one clause per kind of layer."""
    clauses = []
    if plain:
        bare = all("has_weight=False" in (site.target or "") for site in plain)
        clauses.append(f"RMSNorm{' without a weight' if bare else ''} runs `_C.rms_norm`")
    if gemma:
        ships = f"vLLM {tree.version}" if tree.version else "this vLLM"
        how = {
            "needed": "with the first patch of this series",
            "obsolete": f"through its own XPU dispatch, which {ships} ships",
        }.get(dispatch.status, "once vLLM has its XPU dispatch")
        clauses.append(f"GemmaRMSNorm runs `_C.gemma_rms_norm` {how}")
    return clauses


def _keeps_float32(site: Site) -> bool:
    target = site.target or ""
    return target.startswith("RMSNorm(") and "dtype=torch.float32" in target


def _those(wide: Sequence[Site], others: bool) -> str:
    return f"this is not so for {listed(abouts(wide))}: " if others else ""


def about(site: Site) -> str:
    """What a message calls the site."""
    return f"`{site.attribute or site.norm}`"


def abouts(sites: Sequence[Site]) -> list[str]:
    """The sites by name, each once."""
    return list(dict.fromkeys(map(about, sites)))


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
