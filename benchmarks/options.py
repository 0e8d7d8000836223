"""What every benchmark is told: the model, the sizes that both sides get, and whether a glance is enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """Equal for both sides of a comparison.

    Attributes:
        is_quick: fewer repetitions: shows that a benchmark works, not what is true.
        model_path: GGUF file.
        num_threads: of the forward pass.
        context_tokens: size of the KV pool, shared by all requests.
        seed: of prompts and random moments.
        log_dir: where servers' logs go.
        vllm_python, vllm_model: interpreter of an environment with vLLM, and a checkpoint for it; None = it is not there.
        draft_model_path: GGUF file of a draft model, for the benchmark that measures guessing; None = without.
    """

    is_quick: bool
    model_path: Path
    num_threads: int
    context_tokens: int
    seed: int
    log_dir: Path
    vllm_python: Path | None = None
    vllm_model: Path | None = None
    draft_model_path: Path | None = None
