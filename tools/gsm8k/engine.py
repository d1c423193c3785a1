"""vLLM in this process as the thing that answers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from normport.tools.errors import UserError
from normport.tools.gsm8k.backend import Decoding, Output


class Engine:
    """One ``vllm.LLM``; prompts go in one at a time."""

    def __init__(self, model: Path, arguments: dict[str, Any]) -> None:
        """Load ``model``, a folder with a checkpoint.

        arguments: further ones of ``vllm.LLM``. UserError where there is no such folder, no vLLM,
        or vLLM refuses.
        """
        if not (model / "config.json").is_file():
            raise UserError(f"{model} is no checkpoint (it has no config.json); check --model.")
        # In this process alone, so that what a test has put in place is what runs.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # What vLLM logs is about its own start, and stdout is for the scores.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        try:
            import vllm
        except ImportError as error:
            raise UserError(
                f"vLLM cannot be imported here ({error}); run this where it is installed, or "
                "name a server with --base-url."
            ) from error
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        self._vllm = vllm
        self._failures: tuple[type[Exception], ...] = (
            RuntimeError,
            EngineDeadError,
            EngineGenerateError,
        )
        self.model = model
        try:
            self.llm = vllm.LLM(model=str(model), **{"seed": 0, **arguments})
        except Exception as error:  # a broken checkpoint ends in whatever reads that part of it
            raise UserError(f"vLLM could not load {model}: {_said(error)}.") from error

    def about(self) -> dict[str, Any]:
        """What runs: the model, vLLM's version, and how it executes."""
        config = self.llm.llm_engine.vllm_config
        return {
            "backend": "in process",
            "server": None,
            "model": self.model.name,
            "vllm_version": self._vllm.__version__,
            "dtype": str(config.model_config.dtype),
            "compilation": config.compilation_config.mode.name,
            "custom_ops": list(config.compilation_config.custom_ops),
        }

    def generate(self, prompt: str, decoding: Decoding) -> Output:
        """One answer, greedily."""
        greedy = self._vllm.SamplingParams(
            temperature=0, max_tokens=decoding.max_tokens, stop=list(decoding.stop)
        )
        start = time.perf_counter()
        try:
            (result,) = self.llm.generate([prompt], greedy, use_tqdm=False)
        except ValueError as error:
            raise UserError(f"vLLM refuses the prompt: {_said(error)}.") from error
        except self._failures as error:
            raise UserError(f"vLLM failed at the prompt: {_said(error)}.") from error
        latency = time.perf_counter() - start
        answer = result.outputs[0]
        return Output(
            text=answer.text,
            prompt_tokens=len(result.prompt_token_ids),
            output_tokens=len(answer.token_ids),
            latency_s=latency,
            finish_reason=answer.finish_reason,
            tokens=list(answer.token_ids),
        )

    def close(self) -> None:
        """Give back what the engine holds, so that another can follow in this process."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


def _said(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
