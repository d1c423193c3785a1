"""Custom all-reduce fused with RMSNorm (CAR-RMSNorm): where it is used, and how it gets there.

``cells`` has the table, ``contract`` the one predicate over it; ``reading`` takes a model's
properties from vLLM's config; ``platform`` makes it the default; ``ops`` and ``fusion`` put it into
compiled graphs. Only the first two are imported here: they need neither torch nor vLLM.
"""

from normport.layers.car_rmsnorm.contract import (
    CONTRACT,
    Cell,
    Decision,
    Precision,
    RouteConfig,
    cell_for,
    eligible,
    native,
    route,
)

__all__ = [
    "CONTRACT",
    "Cell",
    "Decision",
    "Precision",
    "RouteConfig",
    "cell_for",
    "eligible",
    "native",
    "route",
]
