"""The commands of an ON/OFF comparison, as the CAR-RMSNorm report has them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

OFF_SWITCH = "-cc.pass_config.fuse_allreduce_rms=False"
"""All that the OFF arm has more."""

REPORT_VARIABLE = "NORMPORT_CAR_REPORT"
"""Names the folder into which the fusion pass writes what it rewrote."""

CACHE_VARIABLE = "VLLM_CACHE_ROOT"
CACHE = "cache"
"""Names the folder of compiled graphs; each arm has one of its own, unless the user names one."""

RESULT = "result.json"

MATRIX_FLAGS = (
    *("--max-model-len", "5184", "--max-num-seqs", "64", "--gpu-memory-utilization", "0.8"),
    *("--no-enable-chunked-prefill", "--no-enable-prefix-caching"),
    *("-ac.backend", "FLASH_ATTN", "-cc.cudagraph_mode=FULL_DECODE_ONLY", "--trust-remote-code"),
)
STANDALONE_FLAGS = (
    *("--dtype", "bfloat16"),
    *("--max-model-len", "4096", "--max-num-seqs", "64", "--max-num-batched-tokens", "8192"),
    *("--gpu-memory-utilization", "0.80"),
    *("--cudagraph-capture-sizes", *map(str, range(1, 33)), "64"),
    *("--no-enable-chunked-prefill", "--no-enable-prefix-caching", "--no-enable-dbo"),
    *("--async-scheduling", "-ac.backend", "FLASH_ATTN", "-cc.mode=3"),
    *("-cc.cudagraph_mode=FULL_DECODE_ONLY", "--trust-remote-code"),
)


class Case(StrEnum):
    """Which of the report's two measurements."""

    matrix = "matrix"
    standalone = "standalone"


@dataclass(frozen=True)
class Load:
    """One benchmark run. Lengths in tokens; concurrency is the most requests at a time."""

    input_len: int
    output_len: int
    num_prompts: int
    concurrency: int
    request_rate: str = "inf"

    @property
    def label(self) -> str:
        return f"{self.input_len}/{self.output_len} BS {self.concurrency}"

    @property
    def folder(self) -> str:
        return f"{self.input_len}-{self.output_len}-bs{self.concurrency}"


@dataclass(frozen=True)
class Other:
    """Another OpenAI-compatible server. serve: how to start it; None where it is running."""

    name: str
    url: str
    model: str
    serve: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be run. vllm: the command, and its first words where it is more than one.

    name: under which the model is served; None takes the path. serve_flags: what follows the
    model and its tensor-parallel size.
    """

    case: Case
    vllm: tuple[str, ...]
    model: str
    name: str | None
    tensor_parallel_size: int
    precision: str | None
    host: str
    port: int
    serve_flags: tuple[str, ...]
    loads: tuple[Load, ...]
    repeats: int
    out: Path
    other: Other | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """In the order in which they take turns."""
        return ("on", "off") if self.other is None else ("on", "off", self.other.name)

    def is_other(self, arm: str) -> bool:
        return self.other is not None and arm == self.other.name

    def url(self, arm: str) -> str:
        if self.other is not None and arm == self.other.name:
            return self.other.url
        return f"http://{self.host}:{self.port}"

    def served(self, arm: str) -> str:
        """The model name that requests give."""
        if self.other is not None and arm == self.other.name:
            return self.other.model
        return self.name or self.model

    def folder(self, arm: str, repeat: int) -> Path:
        """Where one turn of an arm keeps its logs and results."""
        return self.out / arm / f"repeat-{repeat}"

    def results(self, arm: str, repeat: int, load: Load) -> Path:
        return self.folder(arm, repeat) / load.folder

    def serve(self, arm: str) -> list[str] | None:
        """The command that starts an arm; None where it is running already."""
        if self.other is not None and arm == self.other.name:
            return None if self.other.serve is None else list(self.other.serve)
        start = [*self.vllm, "serve", self.model]
        parallel = ["--tensor-parallel-size", str(self.tensor_parallel_size)]
        off = [OFF_SWITCH] if arm == "off" else []
        return [*start, *parallel, *self._address(), *self.serve_flags, *off]

    def _address(self) -> list[str]:
        """Where to listen and under which name; the standalone case leaves vLLM's defaults."""
        standalone = self.case is Case.standalone
        address = [] if standalone else ["--host", self.host]
        if not standalone or self.port != DEFAULT_PORT[Case.standalone]:
            address += ["--port", str(self.port)]
        return address if self.name is None else [*address, "--served-model-name", self.name]

    def bench(self, arm: str, repeat: int, load: Load) -> list[str]:
        """The command that measures one load."""
        saved = ["--save-detailed", "--save-result"]
        saved += ["--result-dir", str(self.results(arm, repeat, load)), "--result-filename", RESULT]
        percentiles = ["--percentile-metrics", "ttft,tpot,itl,e2el"]
        percentiles += ["--metric-percentiles", "50,90,95,99"]
        return [*self._requests(arm, load), *saved, *percentiles]

    def warm_up(self, arm: str) -> list[str]:
        """The same requests as the largest load of the first lengths, with nothing saved."""
        first = self.loads[0]
        alike = [
            load
            for load in self.loads
            if (load.input_len, load.output_len) == (first.input_len, first.output_len)
        ]
        return self._requests(arm, max(alike, key=lambda load: load.concurrency))

    def _requests(self, arm: str, load: Load) -> list[str]:
        return [
            *(*self.vllm, "bench", "serve", "--backend", "openai-chat"),
            *("--base-url", self.url(arm), "--model", self.served(arm)),
            *("--tokenizer", self.model, "--trust-remote-code"),
            *("--dataset-name", "random", "--random-input-len", str(load.input_len)),
            *("--random-output-len", str(load.output_len), "--random-range-ratio", "0"),
            *("--num-prompts", str(load.num_prompts), "--request-rate", load.request_rate),
            *("--max-concurrency", str(load.concurrency), "--endpoint", "/v1/chat/completions"),
            *("--temperature", "0", "--seed", "0", "--ignore-eos"),
        ]

    def environment(self, arm: str, repeat: int) -> dict[str, str]:
        """What an arm's server gets beside this process's own environment."""
        if self.is_other(arm):
            return {}
        report = {REPORT_VARIABLE: str(self.rewrites(repeat))} if arm == "on" else {}
        if CACHE_VARIABLE in os.environ:
            return report
        # Graphs out of the user's cache say nothing of rewrites; those of the first turn here do.
        return {**report, CACHE_VARIABLE: str(self.out / CACHE / arm)}

    def rewrites(self, repeat: int) -> Path:
        """Where the fusion pass of one turn writes what it rewrote."""
        return self.folder("on", repeat) / "rewrites"

    def sidecar(self, arm: str, load: Load) -> dict[str, Any]:
        """What a result file does not say of its cell."""
        said = {
            "model": Path(self.served(arm)).name,
            "input_len": load.input_len,
            "output_len": load.output_len,
            "batch_size": load.concurrency,
        }
        if self.is_other(arm):
            return said
        parallel = self.tensor_parallel_size
        return {**said, "tensor_parallel_size": parallel, "precision": self.precision}

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to belong together; repeats may be added."""
        return {
            "schema": 1,
            "serve": {arm: self.serve(arm) for arm in self.arms},
            "requests": [self._requests("on", load) for load in self.loads],
            "other": None if self.other is None else [self.other.url, self.other.model],
            "cells": [self.sidecar("on", load) for load in self.loads],
        }


DEFAULT_PORT = {Case.matrix: 39720, Case.standalone: 8000}


def matrix_loads(lengths: Sequence[tuple[int, int]], batches: Sequence[int]) -> tuple[Load, ...]:
    """Every batch size of every pair of lengths, all requests at once."""
    return tuple(Load(*pair, batch, batch) for pair in lengths for batch in batches)


def listing(plan: Plan) -> str:
    """Every command in its order, for ``--dry-run``; comments say what they are."""
    lines = []
    for repeat in range(1, plan.repeats + 1):
        for arm in plan.arms:
            serve = plan.serve(arm)
            lines.append(f"# {arm}, repeat {repeat} of {plan.repeats}")
            for name, value in plan.environment(arm, repeat).items():
                lines.append(f"# with {name}={shlex.quote(value)}")
            lines.append(
                f"# {plan.url(arm)} must be running" if serve is None else shlex.join(serve)
            )
            lines += ["# warm up, not counted", shlex.join(plan.warm_up(arm))]
            for load in plan.loads:
                lines += [f"# {load.label}", shlex.join(plan.bench(arm, repeat, load))]
            lines.append("# stop" if serve is not None else "# done")
    return "\n".join(lines)
