"""A series as one HTML page that needs nothing beside itself."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shlex import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from normport.codemods.registry import all_rules
from normport.tools.errors import UserError
from normport.tools.mailbox import diff_of
from normport.tools.manifest import NAME, Manifest, PatchEntry, load
from normport.tools.probe_record import DTYPES, Probe
from normport.tools.review.diffs import FileDiff, read_diff
from normport.tools.review.dispatch import SANDWICH, Converted, Dispatch, dispatch_table
from normport.tools.review.histogram import histogram
from normport.tools.review.releases import OnRelease
from normport.tools.review.sites import Site, read_site
from normport.tools.review.text import shown
from normport.tools.series_evidence import probes_of
from normport.tools.transaction import digest

VERDICTS = {
    "safe": ("bit-equal", "Old and new gave the same bits for every input of the proof."),
    "unsafe": ("rounding differs", "Old and new differ by rounding, within the bound."),
    "unproven": ("not proven", "Old and new were not run against each other."),
    "dispatch": ("dispatch", "Gives a layer its kernels; converts no norm."),
    "refused": ("refused", "A model's norm that stays as it is."),
    "apart": ("apart", "No model's norm: a device kernel, a fusion pass, a layer's own."),
}
"""What the filters and badges say, and mean."""


@dataclass(frozen=True)
class File:
    """One file of a patch: what the manifest says of it, and its diff."""

    path: str
    before: str | None
    after: str
    adds: tuple[str, ...]
    removes: tuple[str, ...]
    diff: FileDiff | None


@dataclass(frozen=True)
class PatchView:
    """One patch as the page shows it."""

    entry: PatchEntry
    why: Markup
    files: tuple[File, ...]
    sites: tuple[Site, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Those of its sites; ``dispatch`` when it has none."""
        found = {site.verdict for site in self.sites}
        return tuple(name for name in VERDICTS if name in found) or ("dispatch",)

    @property
    def anchor(self) -> str:
        """Its id on the page."""
        return f"patch-{_anchor(self.entry.file.removesuffix('.patch'))}"


@dataclass(frozen=True)
class Refusals:
    """The sites of one rule."""

    code: str
    title: str
    verdict: str
    sites: tuple[Site, ...]


@dataclass(frozen=True)
class Review:
    """All that the page shows."""

    series: str
    manifest: Manifest
    patches: tuple[PatchView, ...]
    optional: tuple[PatchView, ...]
    dispatch: Dispatch
    releases: tuple[OnRelease, ...]
    refusals: tuple[Refusals, ...]
    commands: tuple[tuple[str, str], ...]
    probes: tuple[Probe, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """What the numbered patches convert."""
        return tuple(site for patch in self.patches for site in patch.sites)

    @property
    def other_checkpoint_ulp(self) -> int:
        """The largest distance of a site where a float32 checkpoint is served narrower."""
        return max((site.other_checkpoint_ulp for site in self.sites), default=0)

    def counts(self) -> Counter[str]:
        """How many sites of the series, and how many left, per verdict."""
        left = (site for group in self.refusals for site in group.sites)
        return Counter(site.verdict for site in (*self.sites, *left))


def read_review(series: Path, on: Sequence[OnRelease]) -> Review:
    """What the page of ``series`` shows.

    on: how it fares on releases.

    Raises:
        UserError: the manifest or a patch is missing, damaged, or was edited.
    """
    manifest = load(series)
    try:
        patches = tuple(_patch(series, entry, {}) for entry in manifest.patches)
        diffs = {file.path: file.diff for patch in patches for file in patch.files}
        optional = tuple(_patch(series, entry, diffs) for entry in manifest.optional)
        left = [
            read_site(one)
            for key, found in manifest.evidence.items()
            if key == "left" or key.endswith(": left")
            for one in found
            if one["verdict"] == "refuse"
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{series / NAME} holds evidence that this normport does not understand: use the "
            "normport that wrote it, or write the series again."
        ) from error
    made = {(s.path, s.line): s for patch in patches for s in patch.sites}
    converted = [Converted(site, patch.entry.file) for patch in patches for site in patch.sites]
    converted += [
        Converted(site, patch.entry.file, made[site.path, site.line])
        for patch in optional
        for site in patch.sites
        if (site.path, site.line) in made and made[site.path, site.line].norm == site.norm
    ]
    converted += [
        Converted(site, patch.entry.file)
        for patch in optional
        for site in patch.sites
        if site.code.startswith(SANDWICH)
    ]
    folder = _folder(series)
    return Review(
        os.fspath(series),
        manifest,
        patches,
        optional,
        dispatch_table(manifest, converted),
        tuple(on),
        tuple(_refusals(left)),
        (
            ("Apply all, with commits", f"git -C CHECKOUT am --keep-non-patch {folder}/*.patch"),
            ("Apply all, no commits", f"normport series apply CHECKOUT --series {folder}"),
            ("Try without applying", f"normport series status CHECKOUT --series {folder}"),
        ),
        tuple(probes_of(manifest, series)),
    )


def render(review: Review) -> bytes:
    """The page, in UTF-8. The same review gives the same bytes."""
    templates = files("normport.tools.review") / "templates"
    css = (templates / "review.css").read_text("utf-8")
    script = (templates / "review.js").read_text("utf-8")
    environment = Environment(
        loader=PackageLoader("normport.tools.review"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Every text of the series is shown in full, also what a browser would not show.
        finalize=lambda value: shown(value) if type(value) is str else value,
    )
    environment.filters |= {"number": _number, "share": _share, "code": _inline_code}
    environment.globals |= {"verdicts": VERDICTS, "histogram": histogram, "dtypes": DTYPES}
    page = environment.get_template("review.html.j2").render(
        review=review,
        counts=review.counts(),
        css=Markup(css),
        script=Markup(script),
        css_hash=_hash(css),
        script_hash=_hash(script),
    )
    return page.encode() + b"\n"


def _patch(series: Path, entry: PatchEntry, earlier: Mapping[str, FileDiff | None]) -> PatchView:
    path = series / entry.file
    try:
        mail = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): write the series again."
        ) from error
    if digest(mail) != entry.sha256:
        raise UserError(f"{path} was edited since normport wrote it: write the series again.")
    if not all(isinstance(text, str) for text in (entry.subject, entry.reason, entry.droppable)):
        raise TypeError(f"{entry.file} is described by no text")
    diffs = {diff.path: diff for diff in read_diff(diff_of(mail), str(path))}
    views = tuple(
        File(f.path, f.before, f.after, f.adds, f.removes, diffs.get(shown(f.path)))
        for f in entry.files
    )
    # A site's line is that of the file as the release has it, which the first patch shows.
    seen = [diff for diff in (*earlier.values(), *diffs.values()) if diff is not None]
    sites = tuple(read_site(one, seen) for one in entry.evidence or ())
    folder = _folder(series)
    name = quote(entry.file)
    commands = [("Look at it", f"git apply --stat --summary {folder}/{name}")]
    if entry.order is None:
        commands.append(("Apply it on top", f"git -C CHECKOUT am --keep-non-patch {folder}/{name}"))
    return PatchView(entry, _prose(entry.reason), views, sites, tuple(commands))


def _folder(series: Path) -> str:
    """The series as a command in any folder names it (``git -C`` goes elsewhere first)."""
    return (
        quote(os.fspath(series)) if series.is_absolute() else f'"$PWD"/{quote(os.fspath(series))}'
    )


def _refusals(left: Sequence[Site]) -> list[Refusals]:
    rules = all_rules()
    found: dict[str, list[Site]] = {}
    for site in left:
        found.setdefault(site.code, []).append(site)
    # What a model's maintainer can do something about comes first.
    ordered = sorted(found, key=lambda code: (found[code][0].verdict != "refused", code))
    return [
        Refusals(
            code,
            rules[code].title if code in rules else "a rule of another normport",
            found[code][0].verdict,
            tuple(sorted(found[code], key=lambda site: (site.path, site.line))),
        )
        for code in ordered
    ]


def _prose(text: str) -> Markup:
    """A commit message's paragraphs; what its author laid out keeps its lines."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", shown(text).strip()):
        if paragraph.startswith((" ", "-", "*")):
            parts.append(Markup("<pre>{}</pre>").format(textwrap.dedent(paragraph)))
        else:
            parts.append(Markup("<p>{}</p>").format(_inline_code(" ".join(paragraph.split()))))
    return Markup("\n").join(parts)


def _inline_code(text: str | None) -> Markup:
    """What stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(shown(text or "")))))


def _number(value: int) -> str:
    return f"{value:,}"


def _share(part: int, whole: int) -> str:
    """A percentage with two digits that count; never 0 % or 100 % of what is not that."""
    if part in (0, whole):
        return "0%" if part == 0 else "100%"
    share = 100 * part / whole
    if share < 0.01:
        return "under 0.01%"
    return "over 99.99%" if share > 99.99 else f"{share:.3g}%" if share < 10 else f"{share:.4g}%"


def _anchor(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", text)


def _hash(text: str) -> str:
    """As a Content-Security-Policy names a script or style sheet that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
