"""A norm class that other files import: where it is constructed in all of them.

Only the plainest way is followed: ``from module import Norm`` at the top of a file of the same
tree, and constructions by that name. Everything else that names the class and its module is
told by its file, so that somebody can look.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normport.codemods.analyze import decode
from normport.codemods.nodes import walk
from normport.tools.outside import has_word

# What the top of a model file does without anybody noticing whether it was imported.
_QUIET_CALLS = {"init_logger", "getLogger", "get_logger", "TypeVar", "NewType", "namedtuple"}
_QUIET_DECORATORS = {"dataclass", "compile", "no_grad", "script", "cache", "lru_cache"}


class NotFollowedError(Exception):
    """The class is used in a way that is not followed; the message says where, without a stop."""


@dataclass(frozen=True)
class Definition:
    """A norm class. path: of its file, with all links resolved."""

    path: Path
    source: bytes
    name: str

    @property
    def stem(self) -> str:
        is_package = self.path.name == "__init__.py"
        return self.path.parent.name if is_package else self.path.stem


@dataclass(frozen=True)
class Importer:
    """A file that constructs the class, under the name ``local``."""

    path: Path
    source: bytes
    local: str


def importers(
    definition: Definition, neighbours: Mapping[Path, bytes], roots: Sequence[Path]
) -> list[Importer]:
    """The other files that construct the class; raises NotFollowedError.

    neighbours: what the files hold that may do so. roots: folders that a file's path may be given
    relative to, the best first.
    """
    naming = {
        path: data
        for path, data in neighbours.items()
        if path != definition.path and has_word(data, definition.name)
    }
    found: list[Importer] = []
    for path, data in naming.items():
        inside = definition.path.name == "__init__.py" and path.is_relative_to(
            definition.path.parent
        )
        if inside or has_word(data, definition.stem):
            importer = _importer(definition, path, data, shown(path, roots))
            if importer is not None:
                found.append(importer)
    for importer in found:
        _check_not_passed_on(importer, naming, roots)
    return found


def shown(path: Path, roots: Sequence[Path]) -> str:
    root = next((root for root in roots if path.is_relative_to(root)), path.parent)
    return path.relative_to(root).as_posix()


def _importer(definition: Definition, path: Path, data: bytes, name: str) -> Importer | None:
    """The file as one that constructs the class; None when it means another one by the name."""
    module = parse(data)
    if module is None:
        raise NotFollowedError(f"{name} names it and does not parse; correct it")
    local: str | None = None
    mine: ast.ImportFrom | None = None
    for node in walk(module):
        if not isinstance(node, ast.ImportFrom):
            continue
        taken = [alias for alias in node.names if alias.name in (definition.name, "*")]
        if not taken or not is_from(node, definition, path):
            continue
        where = f"line {node.lineno} of {name}"
        if taken[0].name == "*":
            raise NotFollowedError(f"{where} may import it with *; import it by name")
        if mine is not None or node not in module.body:
            raise NotFollowedError(
                f"{where} imports it under a condition or once more; import it once"
            )
        mine, local = node, taken[0].asname or taken[0].name
    _check_other_uses(module, definition, name, local)
    if mine is None or local is None:
        return None
    if not any(isinstance(n, ast.Call) and _is_name(n.func, local) for n in walk(module)):
        raise NotFollowedError(f"{name} imports it and does not construct it; drop the import")
    if len(mine.names) == 1 and not _is_quiet(definition):
        what = f"the import in line {mine.lineno} of {name} would go, and may have an effect"
        why = f"{what}; import the file as well if it has one, else leave it"
        raise NotFollowedError(why)
    return Importer(path, data, local)


def _check_other_uses(
    module: ast.Module, definition: Definition, name: str, local: str | None
) -> None:
    """Raises NotFollowedError for what may reach the class by another way than its import."""
    modules = _bound_to(module, definition.stem)
    left_out = {id(n.value) for n in walk(module) if isinstance(n, ast.Expr)}
    if local is not None:
        left_out |= {id(n) for n in _annotated(module)}
    strings = [
        (node.lineno, set(re.findall(r"\w+", node.value)))
        for node in walk(module)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in left_out
    ]
    reached = local is not None or modules or any(definition.stem in w for _, w in strings)
    for line, words in strings:
        if reached and words & {definition.name, local or definition.name}:
            raise NotFollowedError(f"a string in line {line} of {name} names it; do without it")
    for node in walk(module):
        if not isinstance(node, ast.Attribute) or node.attr != definition.name:
            continue
        if local is not None or _root(node) in modules or _root(node) is None:
            what = f"line {node.lineno} of {name} uses `{ast.unparse(node)}`"
            raise NotFollowedError(f"{what}; import the class by its name")


def _check_not_passed_on(
    importer: Importer, naming: Mapping[Path, bytes], roots: Sequence[Path]
) -> None:
    """Raises NotFollowedError when a third file takes the class from the importing one."""
    stem = importer.path.parent.name if importer.path.name == "__init__.py" else importer.path.stem
    for path, data in naming.items():
        if path == importer.path or not has_word(data, stem) or not has_word(data, importer.local):
            continue
        line = _taken_in(parse(data), stem, importer.local)
        if line is not None:
            where = f"line {line} of {shown(path, roots)}"
            what = f"{where} takes it from {shown(importer.path, roots)}"
            raise NotFollowedError(f"{what}; import it from where it is defined")


def _taken_in(module: ast.Module | None, stem: str, name: str) -> int | None:
    """The line in which a file takes ``name`` from a module whose name ends in ``stem``."""
    modules = _bound_to(module, stem) if module is not None else set()
    for node in walk(module) if module is not None else ():
        match node:
            case ast.ImportFrom(module=source) if (source or "").split(".")[-1] == stem:
                if {alias.name for alias in node.names} & {name, "*"}:
                    return node.lineno
            case ast.Attribute(attr=attribute) if attribute == name and _root(node) in modules:
                return node.lineno
    return None


def is_from(node: ast.ImportFrom, definition: Definition, path: Path) -> bool:
    """Whether the import in the file ``path`` is one from the defining file."""
    home = definition.path
    target = home.parent if home.name == "__init__.py" else home.with_suffix("")
    parts = (node.module or "").split(".") if node.module else []
    if node.level:
        folder = path.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        return folder.joinpath(*parts) == target
    if not parts or parts[-1] != target.name:
        return False
    beside = path.parent.joinpath(*parts)
    if beside != target and (beside.with_suffix(".py").is_file() or beside.is_dir()):
        return False
    return target.parts[-len(parts) :] == tuple(parts)


def _is_quiet(definition: Definition) -> bool:
    """Whether importing the defining file does nothing but define."""
    module = parse(definition.source)
    for node in module.body if module is not None else ():
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                continue
            case ast.Expr(value=ast.Constant()):
                continue
            case (
                ast.ClassDef(decorator_list=decorators)
                | ast.FunctionDef(decorator_list=decorators)
                | ast.AsyncFunctionDef(decorator_list=decorators)
            ):
                if {_last(d) for d in decorators} <= _QUIET_DECORATORS:
                    continue
            case ast.Assign(value=value) | ast.AnnAssign(value=value):
                calls = [n for n in walk(value or node) if isinstance(n, ast.Call)]
                if all(_last(call) in _QUIET_CALLS for call in calls):
                    continue
            case ast.If(test=test) if _last(test) == "TYPE_CHECKING":
                continue
        return False
    return True


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _root(node: ast.Attribute) -> str | None:
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else None


def _bound_to(module: ast.Module, stem: str) -> set[str]:
    """Names that imports bind to something that goes through a module of the name ``stem``."""
    found: set[str] = set()
    for node in walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if stem in (*source.split("."), *alias.name.split(".")):
                    found.add(alias.asname or alias.name.partition(".")[0])
    return found


def _annotated(module: ast.Module) -> Iterator[ast.AST]:
    for node in walk(module):
        root: ast.expr | None = None
        if isinstance(node, ast.AnnAssign | ast.arg):
            root = node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            root = node.returns
        if root is not None:
            yield from walk(root)


def parse(data: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another's escapes in strings
            return ast.parse(decode(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
