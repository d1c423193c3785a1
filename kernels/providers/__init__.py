"""The providers. Importing this package registers all; none needs its package to be there."""

from normport.kernels.providers import cpu, triton

__all__ = ["cpu", "triton"]
