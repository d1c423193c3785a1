"""What rounded figures allow: interval arithmetic on printed decimals, exactly.

Figures are ``Decimal``, as read from the text: a float has lost how many decimals were printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from normport.tools.ab_report.model import Better, Rounding

HALF = Fraction(1, 2)


def decimals(figures: Iterable[Decimal]) -> int:
    """Decimals that a column was printed with: the most of any of its figures.

    A trailing zero is not always written, so one figure alone does not tell.
    """
    exponents = (figure.as_tuple().exponent for figure in figures)
    return max((-e for e in exponents if isinstance(e, int) and e < 0), default=0)


def check(
    base: Decimal,
    value: Decimal,
    printed: Decimal,
    *,
    base_decimals: int,
    value_decimals: int,
    change_decimals: int,
    better: Better = "higher",
) -> Rounding:
    """Whether ``printed`` can be the change, in percent, from ``base`` to ``value``.

    better: ``lower`` reverses the sign, as for a gain. ValueError where a figure is so small that
    its rounding reaches zero, from which no change can be told.
    """
    bases = _around(base, base_decimals)
    values = _around(value, value_decimals)
    if bases[0] <= 0 or values[0] <= 0:
        raise ValueError(f"{base} and {value} must be positive beyond their rounding")
    sign = 1 if better == "higher" else -1
    ends = [
        sign * (values[0] / bases[1] - 1) * 100,
        sign * (values[1] / bases[0] - 1) * 100,
    ]
    low, high = min(ends), max(ends)
    wanted = _around(printed, change_decimals)
    exact = sign * (Fraction(value) / Fraction(base) - 1) * 100
    return Rounding(
        low=float(low),
        high=float(high),
        consistent=wanted[0] <= high and low <= wanted[1],
        recomputed=float(round(exact, change_decimals)),
    )


def _around(figure: Decimal, places: int) -> tuple[Fraction, Fraction]:
    """All that is printed as ``figure`` with ``places`` decimals, its ends included."""
    half = HALF / 10**places
    return Fraction(figure) - half, Fraction(figure) + half
