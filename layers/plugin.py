"""The vLLM plug-in: gives the norms of this platform their dispatch, without a source change.

vLLM calls ``load`` in every process (entry point ``vllm.general_plugins``). What was done, or why
not, is in ``OUTCOME``, which ``normport doctor`` prints. ``NORMPORT_DISABLE=1`` turns it off; it
never touches CAR-RMSNorm, whose only switch is vLLM's.
"""

from __future__ import annotations

import os

DISABLE = "NORMPORT_DISABLE"
COUNTS = "NORMPORT_GUARD_COUNTS"

OUTCOME: dict[str, str] = {}
"""Per part of the dispatch, one clause: ``installed``, or what stands in its way."""


def load() -> None:
    """Install what the platform of this process has; a second call changes nothing."""
    if os.environ.get(DISABLE) == "1":
        OUTCOME.clear()
        OUTCOME["plug-in"] = f"turned off by {DISABLE}=1"
        return
    platform = supported_platform()
    if platform is None:
        OUTCOME.clear()
        OUTCOME["plug-in"] = "nothing to do on this platform"
        return
    if platform == "xpu":
        from normport.layers.xpu import install
    else:
        from normport.layers.musa import install
    OUTCOME.update(install())
    if COUNTS in os.environ:
        from normport.layers.counting import count_until_exit

        count_until_exit(os.environ[COUNTS])


def supported_platform() -> str | None:
    """``xpu``, ``musa`` or None, by what vLLM found in this process."""
    from vllm.platforms import current_platform

    if current_platform.is_xpu():
        return "xpu"
    # An out-of-tree platform names its device; vllm-musa's is "musa".
    if current_platform.is_out_of_tree() and "musa" in (
        current_platform.device_type,
        current_platform.device_name,
    ):
        return "musa"
    return None
