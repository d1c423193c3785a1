"""The report's plots as SVG that takes its colors from the page, for light and dark.

Matplotlib writes the SVG: a plot of 33 rows takes about 60 kB, where an embedded plotting
library would take megabytes; text stays text, which can be read out, searched and printed.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normport.tools.ab_report.model import METRICS, Cell, Metric
from normport.tools.plural import many
from normport.tools.printable import printable

COLORS = {
    "#010101": "var(--ink)",
    "#020202": "var(--faint)",
    "#030303": "var(--better)",
    "#040404": "var(--worse)",
    "#050505": "var(--off)",
    "#060606": "var(--on)",
    "#070707": "var(--page)",
}
"""What is drawn -> what the page makes of it. Matplotlib writes each as it is given."""

INK, FAINT, BETTER, WORSE, OFF, ON, PAGE = COLORS

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}

MARKERS = {"50": "o", "90": "D", "99": "s"}
"""Percentiles that are drawn, each with a shape of its own."""

WIDTH_INCHES, ROW_INCHES = 5.6, 0.42
"""A drawing is as wide as a phone makes legible; so each row has its label above it."""

_SCREEN = 12
"""Rows that a screen shows; a taller drawing has the numbers of its axis above it as well."""

LABEL = 54
"""Characters that fit above a row; a longer label loses its middle."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "normport",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.parse_math": False,  # a name may hold dollars
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


def changes(cells: Sequence[Cell], metric: Metric) -> str | None:
    """Change per cell with its interval; None where no cell has the metric."""
    rows = [(cell, cell.changes[metric.key]) for cell in cells if metric.key in cell.changes]
    if not rows:
        return None
    with mpl.rc_context(STYLE):
        figure, axes = _axes([cell.key.label for cell, _ in rows])
        for row, (_, change) in enumerate(rows):
            place = row + 0.2
            value = change.change_percent
            color = BETTER if metric.improved(value) else WORSE if value else INK
            if change.interval is not None:
                low, high = change.interval.low, change.interval.high
                axes.plot([low, high], [place, place], color=color, linewidth=2)
            axes.plot(
                value,
                place,
                marker=">" if value > 0 else "<" if value < 0 else "o",
                color=color,
                markerfacecolor=color if change.shown else PAGE,
                markersize=6,
            )
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_xlabel(f"{metric.title}: change from OFF to ON, % ({metric.better} is better)")
        return _svg(figure, f"{metric.title}, change from OFF to ON of {many(len(rows), 'cell')}")


def percentiles(cells: Sequence[Cell], metric: str) -> str | None:
    """P50, P90 and P99 of a latency in both arms; None where no cell has them."""
    rows = [cell for cell in cells if set(cell.percentiles.get(metric, {})) == {"off", "on"}]
    if not rows:
        return None
    title = LATENCIES[metric]
    with mpl.rc_context(STYLE):
        figure, axes = _axes([cell.key.label for cell in rows])
        for place, cell in enumerate(rows):
            for arm, color, shift in (("off", OFF, 0.08), ("on", ON, 0.34)):
                found = cell.percentiles[metric][arm]
                values = [found[p] for p in MARKERS if p in found]
                axes.plot(values, [place + shift] * len(values), color=color, linewidth=1)
                for percentile, marker in MARKERS.items():
                    if percentile in found:
                        axes.plot(
                            found[percentile],
                            place + shift,
                            marker=marker,
                            color=color,
                            markersize=5,
                            markerfacecolor=color if arm == "on" else PAGE,
                        )
        axes.set_xlabel(f"{title} in ms (lower is better): P50 ○, P90 ◇, P99 □")
        return _svg(figure, f"{title} percentiles of both arms, {many(len(rows), 'cell')}")


def all_changes(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """Title and SVG of each metric that was measured."""
    drawn = [(metric.title, changes(cells, metric)) for metric in METRICS]
    return [(title, svg) for title, svg in drawn if svg is not None]


def all_percentiles(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """Title and SVG of each latency whose percentiles are known."""
    drawn = [(title, percentiles(cells, metric)) for metric, title in LATENCIES.items()]
    return [(title, svg) for title, svg in drawn if svg is not None]


def _axes(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """Rows from the top down. The margins are set here: finding them takes another drawing."""
    tall = len(labels) > _SCREEN
    below, above = 0.65, 0.35 if tall else 0.1
    width, height = WIDTH_INCHES, below + above + ROW_INCHES * len(labels)
    figure = Figure(figsize=(width, height))
    plot_height = (height - below - above) / height
    axes = figure.add_axes((0.1 / width, below / height, 1 - 0.2 / width, plot_height))
    axes.tick_params(axis="x", top=tall, labeltop=tall)
    axes.set_yticks([])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for row, label in enumerate(labels):
        axes.text(
            0,
            row - 0.42,
            _short(printable(label)),
            transform=axes.get_yaxis_transform(),
            verticalalignment="top",
            bbox={"facecolor": PAGE, "edgecolor": "none", "pad": 0.5},
        )
    return figure, axes


def _short(label: str) -> str:
    half = LABEL // 2
    return label if len(label) <= LABEL else f"{label[: half - 1]}…{label[-half:]}"


def _svg(figure: Figure, label: str) -> str:
    """The SVG element alone, its colors the page's and its name ``label``."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The text stays text, so what Matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for drawn, shown in COLORS.items():
        text = text.replace(drawn, shown)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
