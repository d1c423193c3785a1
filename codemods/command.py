"""The codemod as a plain LibCST command:

    python -m libcst.tool codemod -x --no-format \\
        normport.codemods.command.StandardNormsCommand --allow-unproven FILE

LibCST runs no proof, so without ``--allow-unproven`` the command only reports what
``normport rewrite`` would convert. ``-x`` names a class outside of LibCST's own folders, and
``--no-format`` keeps it from running a formatter over the whole file. What other files of the
repository import stays as it is; how they use attributes only ``normport rewrite`` sees. A comment
``# normport: ignore`` counts; ``[tool.normport]`` in pyproject.toml does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext

from normport.codemods.analyze import Options, decode, find_sites, plan
from normport.codemods.edit import apply_plan
from normport.codemods.model import RefusedEdit, Site
from normport.codemods.suppressions import Suppressions, may_hold_comment
from normport.codemods.surroundings import imported_elsewhere


class StandardNormsCommand(CodemodCommand):
    """Declares vLLM's standard norm layers in place of model-local norms."""

    DESCRIPTION = (
        "Declare vLLM's standard norm layers (RMSNorm, GemmaRMSNorm) in place of model-local norms."
    )

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        """Adds the flags of ``normport rewrite`` that need no proof."""
        arg_parser.add_argument(
            "--allow-unproven",
            action="store_true",
            help="convert although LibCST cannot run the proof that the numbers stay the same",
        )
        arg_parser.add_argument(
            "--unsafe",
            action="store_true",
            help="declare plain RMSNorm where a float32 weight would be bit-equal",
        )
        arg_parser.add_argument(
            "--dim",
            action="append",
            default=[],
            type=_dim,
            metavar="CLASS.ATTR=EXPR",
            help="the size of a weightless norm, where it cannot be inferred",
        )

    def __init__(
        self,
        context: CodemodContext,
        allow_unproven: bool = False,
        unsafe: bool = False,
        dim: list[str] | None = None,
    ) -> None:
        super().__init__(context)
        try:
            dims = dict(_dim(entry).split("=", 1) for entry in dim or ())
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"--dim: {error}") from None
        self.allow_unproven = allow_unproven
        self.options = Options(unsafe=unsafe, dims=dims)

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """``tree`` with its convertible norms converted, or unchanged with warnings."""
        source = tree.bytes
        options = self.options
        sites = find_sites(source, self.context.filename or "<module>", options)
        if self.context.filename and any(site.verdict == "convert" for site in sites):
            used = imported_elsewhere(Path(self.context.filename), decode(source))
            options = replace(options, outside_uses=used)
            sites = find_sites(source, self.context.filename, options)
        self._check_dims(sites)
        sites = self._not_ignored(sites, tree.code)
        convertible = [site for site in sites if site.verdict == "convert"]
        for site in sites:
            if site.verdict == "refuse":
                self.warn(f"line {site.line}: {site.code} {site.reason}")
        if not convertible:
            return tree
        if not self.allow_unproven:
            for site in convertible:
                self.warn(
                    f"line {site.line}: {site.norm} could become {site.target}; LibCST runs no "
                    "proof: use `normport rewrite`, or pass --allow-unproven"
                )
            return tree
        try:
            result = apply_plan(source, plan(source, sites, options), keep=options.outside_uses)
        except RefusedEdit as refused:
            self.warn(f"not converted: {refused}")
            return tree
        return cst.parse_module(result.source)

    def _not_ignored(self, sites: Sequence[Site], text: str) -> tuple[Site, ...]:
        """The sites that no ``# normport: ignore`` keeps out, nor one they are converted with."""
        if not may_hold_comment(text.encode()):
            return tuple(sites)
        comments = Suppressions(text, self.context.filename or "<module>")
        hidden = [site for site in sites if comments.hides(site, site.code)]
        groups = {word for site in hidden for word in site.together}
        for complaint in comments.complaints():
            self.warn(f"line {complaint.line}: {complaint.message}")
        return tuple(
            site for site in sites if site not in hidden and groups.isdisjoint(site.together)
        )

    def _check_dims(self, sites: Sequence[Site]) -> None:
        """Warn of a ``--dim`` that is for none of the file's norms, where it has any."""
        found = [site for site in sites if site.verdict != "done"]
        held = {f"{site.owner}.{site.attribute}" for site in found}
        held |= {f"{owner}.{attribute}" for site in found for owner, attribute in site.also}
        for name, text in self.options.dims.items() if found else ():
            if name not in held:
                self.warn(f"--dim {name}={text} names no norm of this file")


def _dim(text: str) -> str:
    """``text`` without blanks around its parts; argparse's error where it is no ``--dim``."""
    name, sign, expression = (part.strip() for part in text.partition("="))
    if not sign:
        raise argparse.ArgumentTypeError(f"{text} is not CLASS.attr=EXPR; give A.norm=128")
    try:
        Options(dims={name: expression})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; give for example A.norm=128") from None
    return f"{name}={expression}"
