"""The providers. Importing this package registers all; none needs its package to be there."""

from normport.kernels.providers import cpu, ipex, musa, triton, vllm_cpu, xpu

__all__ = ["cpu", "ipex", "musa", "triton", "vllm_cpu", "xpu"]
