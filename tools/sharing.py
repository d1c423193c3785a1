"""Sites that are converted together: those of a class that several files construct, and others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from normport.codemods.advice import advised
from normport.codemods.analyze import Foreign, Options
from normport.codemods.model import Site
from normport.tools.constructed import calls, defined_only, may_call, with_places
from normport.tools.crossfile import Definition, Importer, NotFollowedError, importers, shown
from normport.tools.discover import PythonFile
from normport.tools.findings import FileResult, Safety
from normport.tools.judge import Judgement
from normport.tools.neighbours import Neighbours, neighbourhood
from normport.tools.outside import Target, has_word
from normport.tools.parallel import Workers

IMPORTED, NOT_CONSTRUCTED, INCOMPLETE = "NP220", "NP219", "NP226"


class _NotLookedAtError(NotFollowedError):
    """All uses of the class are seen, one of them in a file that is not to be changed."""


class Source(Protocol):
    """One file with norms in it, as it is being decided about."""

    file: PythonFile
    data: bytes
    sites: tuple[Site, ...]
    options: Options


S = TypeVar("S", bound=Source)


def share(
    sources: Sequence[S],
    listed: Neighbours,
    workers: Workers,
    make: Callable[[PythonFile, bytes, Options], S],
    decided: Callable[[S], tuple[Site, ...]],
) -> list[S]:
    """Decide again about the classes that other files construct, with these files.

    make: a source without sites. decided: its sites by its options.
    Returns the files that were decided about again, some of which may not be in ``sources``.
    """
    shared = {source.file: _constructed_elsewhere(source) for source in sources}
    names = frozenset(name for found in shared.values() for name in found)
    only = {source.file: defined_only(source.data, source.sites) for source in sources}
    pairs = frozenset(
        (name, Definition(source.file.path, b"", name).stem)
        for source in sources
        for name in only[source.file]
    )
    neighbours = _Users(listed, workers, names, pairs)
    known = {source.file.path.resolve(): source for source in sources}
    changed: dict[Path, S] = {}
    for source in sources:
        for name in shared[source.file]:
            path = source.file.path.resolve()
            definition = Definition(path, source.data, name)
            try:
                users = neighbours.users(definition, source.file)
            except NotFollowedError as problem:
                _explain(source, name, _with_hint(problem))
                continue
            if not users:
                continue
            word = f"{path}:{name}"
            _include(source, shared={name: word})
            changed[path] = source
            for user in users:
                other = known.get(user.path)
                if other is None:
                    other = make(listed.given[user.path], user.source, _plain(source.options))
                    known[user.path] = other
                _include(other, foreign={user.local: Foreign(source.data, name, word)})
                changed[user.path] = other
    again = list(changed.values())
    for source, sites in zip(again, workers.map(decided, again), strict=True):
        source.sites = sites
    for source in sources:
        still = set(defined_only(source.data, source.sites))
        only[source.file] = [name for name in only[source.file] if name in still]
    placed = neighbours.placed(
        [(s, site) for s in sources for site in s.sites if site.norm in only[s.file]]
    )
    for source in sources:
        source.sites = tuple(
            next(placed) if site.norm in only[source.file] else site for site in source.sites
        )
    return again


def _constructed_elsewhere(source: Source) -> list[str]:
    """The classes of a file that others may construct."""
    codes = {site.norm: site.code for site in source.sites}
    return [name for name, code in codes.items() if code in (IMPORTED, NOT_CONSTRUCTED)]


def _plain(options: Options) -> Options:
    return Options(unsafe=options.unsafe, dims=options.dims)


def _include(
    source: Source,
    shared: Mapping[str, str] | None = None,
    foreign: Mapping[str, Foreign] | None = None,
) -> None:
    options = source.options
    source.options = replace(
        options,
        outside_uses=options.outside_uses - set(shared or ()),
        shared={**options.shared, **(shared or {})},
        foreign={**options.foreign, **(foreign or {})},
    )


class _Users:
    """The files around those that define shared classes, each read once.

    names: of all the classes. pairs: of classes of which no more than their own file's users are
    asked for, with the word by which those name the file.
    """

    def __init__(
        self,
        listed: Neighbours,
        workers: Workers,
        names: Collection[str],
        pairs: Collection[tuple[str, str]] = (),
    ) -> None:
        self.pairs = pairs
        self.listed = listed
        self.workers = workers
        self.names = names
        self._read: dict[tuple[Path, bool], dict[Path, bytes]] = {}

    def users(self, definition: Definition, file: PythonFile) -> list[Importer]:
        """The files that construct the class, all of them given; raises NotFollowedError."""
        roots = (file.root, neighbourhood(definition.path)[0])
        found = importers(definition, self._around(definition), roots)
        for user in found:
            if user.path not in self.listed.given:
                where = shown(user.path, roots)
                why = f"{where} constructs it too and is not looked at; name that file as well"
                raise _NotLookedAtError(why)
        return found

    def _around(self, definition: Definition) -> Mapping[Path, bytes]:
        """What the files around the one that defines the class hold, of those that may use it."""
        folder, deep = neighbourhood(definition.path)
        if (folder, deep) not in self._read:
            paths = self.listed.around(folder, deep)
            read = self.workers.map(partial(_naming, names=self.names, pairs=self.pairs), paths)
            naming = zip(paths, read, strict=True)
            self._read[folder, deep] = {path: data for path, data in naming if data is not None}
        return self._read[folder, deep]

    def placed(self, sites: Sequence[tuple[Source, Site]]) -> Iterator[Site]:
        """The sites, each a class's, with where other files construct that."""
        definitions = [Definition(s.file.path.resolve(), b"", site.norm) for s, site in sites]
        asked = [
            (definition, path, data)
            for definition in dict.fromkeys(definitions)
            for path, data in self._around(definition).items()
            if may_call(definition, path, data)
        ]
        found: dict[Definition, dict[Path, list[int]]] = {}
        for (definition, path, _), lines in zip(asked, self.workers.map(calls, asked), strict=True):
            if lines:
                found.setdefault(definition, {})[path] = lines
        for (source, site), definition in zip(sites, definitions, strict=True):
            roots = (source.file.root, neighbourhood(definition.path)[0])
            yield with_places(site, found.get(definition, {}), roots)


def _naming(path: Path, names: Collection[str], pairs: Collection[tuple[str, str]]) -> bytes | None:
    """What a file holds that has one of the names in it, or both words of a pair."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    wanted = any(has_word(data, name) for name in names) or any(
        has_word(data, name) and has_word(data, stem) for name, stem in pairs
    )
    return data if wanted else None


def _with_hint(problem: NotFollowedError) -> str:
    """The problem, which says what to do, with what it means."""
    if isinstance(problem, _NotLookedAtError):
        return str(problem)
    what, _, action = str(problem).rpartition("; ")
    return f"{what}, so its uses are not all seen; {action}"


def _explain(source: Source, name: str, why: str) -> None:
    source.sites = tuple(
        replace(site, code=IMPORTED, reason=advised(IMPORTED, f"{name}: {why}."))
        if site.norm == name and site.code in (IMPORTED, NOT_CONSTRUCTED)
        else site
        for site in source.sites
    )


def unless_called(
    site: Site, target: Target, neighbours: Sequence[Path], roots: Sequence[Path]
) -> Site:
    """The site, refused when its calls change and another file may hold one of them."""
    if site.verdict != "convert" or not site.rewrites_calls or site.attribute is None:
        return site
    for path in neighbours:
        data = path.read_bytes() if path.is_file() else b""
        if path == target.path or not target.is_named_by(path, data):
            continue
        if has_word(data, site.attribute) and has_word(data, site.owner or ""):
            why = (
                f"its calls change, and {shown(path, roots)} may hold another one; look at that "
                "file, and pass the input alone in both"
            )
            return site.refused("NP208", f"{site.norm}: {why}.")
    return site


def refuse_incomplete(sources: Sequence[Source]) -> None:
    """Refuse what goes together with a site that is refused."""
    while True:
        spoiled = _spoiled(sources, [{n: s.reason or "" for n, s in _left(x)} for x in sources])
        if not any(spoiled):
            return
        for source, found in zip(sources, spoiled, strict=True):
            source.sites = tuple(
                site.refused(INCOMPLETE, found[n]) if n in found else site
                for n, site in enumerate(source.sites)
            )


def _left(source: Source) -> Iterator[tuple[int, Site]]:
    return ((n, site) for n, site in enumerate(source.sites) if site.verdict == "refuse")


def complete(
    sources: Sequence[Source],
    judged: Sequence[Sequence[Judgement]],
    refused: Sequence[Mapping[int, str]],
    accept: Collection[Safety],
    allowed: Sequence[Collection[int]],
) -> tuple[list[list[int]], list[dict[int, str]]]:
    """The sites to convert in each file, and those that another one's refusal spoils, with why.

    allowed: by file the sites that may be converted. Sites that go together with one that is not
    accepted, or not allowed, wait for it.
    """
    bad = [
        {n: one.reason or "" for n, one in enumerate(found) if one.verdict == "refuse"} | dict(more)
        for found, more in zip(judged, refused, strict=True)
    ]
    spoiled: list[dict[int, str]] = [{} for _ in sources]
    while any(more := _spoiled(sources, bad)):
        for old, all_bad, new in zip(spoiled, bad, more, strict=True):
            old.update(new)
            all_bad.update(new)
    chosen = [
        {n for n in may if n not in out and found[n].safety in accept}
        for found, out, may in zip(judged, bad, allowed, strict=True)
    ]
    while True:
        waiting = {
            word
            for source, found, in_, out in zip(sources, judged, chosen, bad, strict=True)
            for n, site in enumerate(source.sites)
            if n not in in_ and n not in out and found[n].verdict == "convert"
            for word in _together(source, site)
        }
        kept = [
            {n for n in found if waiting.isdisjoint(_together(source, source.sites[n]))}
            for source, found in zip(sources, chosen, strict=True)
        ]
        if kept == chosen:
            return [sorted(found) for found in chosen], spoiled
        chosen = kept


def _spoiled(sources: Sequence[Source], bad: Sequence[Mapping[int, str]]) -> list[dict[int, str]]:
    """The sites that are not bad and go together with one that is, with the reason."""
    why: dict[str, str] = {}
    reasons = [
        (source, source.sites[n], found[n])
        for source, found in zip(sources, bad, strict=True)
        for n in found
    ]
    # What is itself refused for another one's sake explains nothing.
    for source, site, reason in sorted(reasons, key=lambda item: item[1].code == INCOMPLETE):
        text = f"its construction in line {site.line} of {source.file.relative} is refused"
        for word in _together(source, site):
            why.setdefault(word, f"{text}: {reason.removeprefix(f'{site.norm}: ').rstrip('.')}")
    return [
        {
            n: f"{site.norm}: {why[words[0]]}."
            for n, site in enumerate(source.sites)
            if n not in found
            and site.verdict == "convert"
            and (words := [word for word in _together(source, site) if word in why])
        }
        for source, found in zip(sources, bad, strict=True)
    ]


def _together(source: Source, site: Site) -> list[str]:
    """The words of a site, those told apart that only mean something in their own file: two
    files may each have a ``Layer.norm``."""
    return [w if ":" in w else f"{source.file.path}: {w}" for w in site.together]


def grouped(results: Sequence[FileResult]) -> list[list[FileResult]]:
    """The files that change, those together that must; the file that defines the norms first."""
    groups: list[list[FileResult]] = []
    for result in results:
        words = _words(result)
        mine = [group for group in groups if any(words & _words(one) for one in group)]
        merged = [*(one for group in mine for one in group), result]
        place = groups.index(mine[0]) if mine else len(groups)
        groups = [group for group in groups if group not in mine]
        groups.insert(place, merged)
    return [sorted(group, key=_defines, reverse=True) for group in groups]


def united(group: Sequence[FileResult]) -> FileResult:
    """The results of files that change together, as though they were one file: the first."""
    return replace(
        group[0],
        findings=tuple(finding for one in group for finding in one.findings),
        sites=tuple(site for one in group for site in one.sites),
        removed=tuple(name for one in group for name in one.removed),
        lost_comments=tuple(text for one in group for text in one.lost_comments),
    )


def _words(result: FileResult) -> set[str]:
    """What the applied sites of the file share with those of others."""
    pairs = zip(result.sites, result.findings, strict=True)
    return {
        word for site, finding in pairs if finding.applied for word in site.together if ":" in word
    }


def _defines(result: FileResult) -> bool:
    return any(word.startswith(f"{result.file.resolve()}:") for word in _words(result))
