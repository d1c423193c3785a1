"""The codemod as a plain LibCST command:

    python -m libcst.tool codemod -x --no-format \\
        normport.codemods.command.StandardNormsCommand --allow-unproven FILE

LibCST runs no proof, so without ``--allow-unproven`` the command only reports what
``normport rewrite`` would convert. ``-x`` names a class outside of LibCST's own folders, and
``--no-format`` keeps it from running a formatter over the whole file.
"""

from __future__ import annotations

import argparse

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext

from normport.codemods.analyze import Options, find_sites, plan
from normport.codemods.edit import apply_plan
from normport.codemods.model import RefusedEdit


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
        dims = dict(entry.split("=", 1) for entry in dim or () if "=" in entry)
        self.allow_unproven = allow_unproven
        self.options = Options(unsafe=unsafe, dims=dims)

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """``tree`` with its convertible norms converted, or unchanged with warnings."""
        source = tree.bytes
        sites = find_sites(source, self.context.filename or "<module>", self.options)
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
            result = apply_plan(source, plan(source, sites, self.options))
        except RefusedEdit as refused:
            self.warn(f"not converted: {refused}")
            return tree
        return cst.parse_module(result.source)
