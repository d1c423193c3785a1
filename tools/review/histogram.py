"""How far old and new lie apart, as a small picture."""

from __future__ import annotations

import math

from markupsafe import Markup

from normport.tools.review.sites import Measured

_BAR, _GAP, _HEIGHT = 14, 4, 30
_LEAST = 2.0


def histogram(result: Measured) -> Markup:
    """Bars of the logarithms of the counts, one per distance; the counts are in its name.

    The logarithm keeps a handful of far elements visible beside millions of equal ones.
    """
    most = max((count for _, count in result.histogram), default=0)
    width = len(result.histogram) * (_BAR + _GAP) - _GAP
    bars = []
    for at, (bucket, count) in enumerate(result.histogram):
        height = 0.0
        if count:
            height = _LEAST + (_HEIGHT - _LEAST) * math.log1p(count) / math.log1p(most)
        bars.append(
            Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                "none" if bucket == "0" else "some",
                at * (_BAR + _GAP),
                f"{_HEIGHT - height:.1f}",
                _BAR,
                f"{height:.1f}",
            )
        )
    counts = [f"{bucket} ulp: {count:,}" for bucket, count in result.histogram if count]
    name = f"{result.dtype}, elements by distance, logarithmic: {'; '.join(counts) or 'none'}"
    return Markup(
        '<svg class="histogram" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}"'
        ' height="{}"><title>{}</title>'
        '<line x1="0" x2="{}" y1="{}" y2="{}"/>{}</svg>'
    ).format(
        name,
        width,
        _HEIGHT + 1,
        width,
        _HEIGHT + 1,
        name,
        width,
        _HEIGHT + 0.5,
        _HEIGHT + 0.5,
        Markup("").join(bars),
    )
