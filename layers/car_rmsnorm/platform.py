"""The part of a vLLM platform that makes CAR-RMSNorm the default.

vLLM takes one out-of-tree platform, so this is a mixin that the platform's class inherits first:

    class MtmlMUSAPlatform(CarRmsNormMixin, MUSAPlatformBase): ...

It uses only what vLLM 0.29.0 asks its platforms for, and each answer builds on the platform's own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from normport.layers.car_rmsnorm.contract import CONTRACT, Table

_FACTORIES = "normport.layers.car_rmsnorm.factories"


class CarRmsNormMixin:
    """Inherit this before a ``vllm.platforms.Platform``."""

    car_rmsnorm_table: ClassVar[Table] = CONTRACT
    """For test platforms, whose models are smaller than any in the contract."""

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
        """Set the unspecified flag, after the platform's own defaults."""
        from normport.layers.car_rmsnorm.defaults import apply_default

        super().apply_config_platform_defaults(vllm_config)  # type: ignore[misc]
        apply_default(vllm_config, cls.car_rmsnorm_table)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Merge the endpoints, once the platform has settled whether vLLM compiles."""
        from normport.layers.car_rmsnorm.defaults import settle

        super().check_and_update_config(vllm_config)  # type: ignore[misc]
        settle(vllm_config, cls.car_rmsnorm_table)

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        """What vLLM calls for a pass manager: the platform's own, with our pass in its place."""
        return f"{_FACTORIES}.make_pass_manager"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """What vLLM calls for a communicator: the platform's own, once all ranks agree."""
        return f"{_FACTORIES}.make_communicator"

    @classmethod
    def stock_pass_manager_cls(cls) -> str:
        """The pass manager of the platform without this mixin."""
        return str(super().get_pass_manager_cls())  # type: ignore[misc]

    @classmethod
    def stock_device_communicator_cls(cls) -> str:
        """The communicator of the platform without this mixin."""
        return str(super().get_device_communicator_cls())  # type: ignore[misc]

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed, and look at what the pass did.

        Workers seed again after they compiled and warmed up, which is the first that a platform
        hears of when all graphs have been seen.
        """
        from normport.layers.car_rmsnorm.counts import conclude

        super().manual_seed_all(seed)  # type: ignore[misc]
        conclude()
