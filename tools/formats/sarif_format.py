"""SARIF 2.1.0, which code scanning services take in."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from urllib.parse import quote

from normport.codemods.registry import all_rules
from normport.codemods.suppressions import Complaint
from normport.tools.findings import FileError, Finding, Report
from normport.tools.formats.github_format import sentence

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"convert": "warning", "done": "none", "refuse": "note"}
KINDS = {"convert": "fail", "done": "pass", "refuse": "fail"}


def render(report: Report) -> str:
    """One SARIF log with one run; errors, and comments that are unused, are its notifications."""
    findings = report.findings
    rules = _rules({finding.code for finding in findings})
    index = {str(rule["id"]): number for number, rule in enumerate(rules)}
    run = {
        "tool": {
            "driver": {
                "name": "normport",
                "semanticVersion": version("normport"),
                "rules": rules,
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, index[finding.code]) for finding in findings],
        "invocations": [
            {
                "executionSuccessful": not report.errors,
                "toolExecutionNotifications": [
                    *(_notification(error) for error in report.errors),
                    *(_warning(complaint) for complaint in report.complaints),
                ],
            }
        ],
        "properties": {"summary": report.to_json()["summary"]},
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2) + "\n"


def _rules(codes: set[str]) -> list[dict[str, object]]:
    known = all_rules()
    described: list[dict[str, object]] = []
    for code in sorted(codes):
        rule = known.get(code)
        title = rule.title if rule else code
        described.append(
            {
                "id": code,
                "shortDescription": {"text": title},
                "fullDescription": {"text": rule.why if rule else title},
            }
        )
    return described


def _result(finding: Finding, rule: int) -> dict[str, object]:
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": "none" if finding.apart else LEVELS[finding.verdict],
        "kind": "informational" if finding.apart else KINDS[finding.verdict],
        "message": {"text": sentence(finding)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": _location(finding.shown),
                    "region": {"startLine": finding.line, "startColumn": finding.column},
                }
            }
        ],
        "properties": finding.to_json(),
    }


def _notification(error: FileError) -> dict[str, object]:
    return {
        "level": "error",
        "message": {"text": error.message},
        "locations": [{"physicalLocation": {"artifactLocation": _location(error.path)}}],
    }


def _warning(complaint: Complaint) -> dict[str, object]:
    place = {
        "artifactLocation": _location(complaint.shown),
        "region": {"startLine": complaint.line, "startColumn": complaint.column},
    }
    return {
        "level": "warning",
        "message": {"text": complaint.message},
        "locations": [{"physicalLocation": place}],
    }


def _location(path: str) -> dict[str, str]:
    return {"uri": quote(os.fsencode(path))}
