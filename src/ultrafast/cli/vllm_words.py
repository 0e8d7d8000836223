"""What people who come from `vllm bench serve` type: options with several values, and options that we do not need."""

from __future__ import annotations

import re
from typing import Any

import click

_NOT_NEEDED = "it is not needed here: leave it out"
HINTS = {
    "--backend": "Every server is spoken to over OpenAI's API; --endpoint chooses the route.",
    "--endpoint-type": "Every server is spoken to over OpenAI's API; --endpoint chooses the route.",
    "--host": "Give the whole address: --url http://HOST:PORT.",
    "--port": "Give the whole address: --url http://HOST:PORT.",
    "--dataset-name": "--scenario chooses the shape of random prompts, --prompts FILE sends your own, --trace FILE replays.",
    "--dataset-path": "--prompts FILE sends your own prompts, --trace FILE replays recorded traffic.",
    "--custom-output-len": "Say it with --output-len.",
    "--sharegpt-output-len": "Say it with --output-len.",
    "--random-range-ratio": "Give a range: --input-len uniform:64-256.",
    "--ramp-up-strategy": "Measure several loads in turn: --sweep 1,2,4,8.",
    "--tokenizer": f"The server counts its tokens itself, so {_NOT_NEEDED}.",
    "--tokenizer-mode": f"The server counts its tokens itself, so {_NOT_NEEDED}.",
    "--trust-remote-code": f"No code of a model runs in the bench, so {_NOT_NEEDED}.",
    "--disable-tqdm": f"The bar shows on a terminal only, so {_NOT_NEEDED}.",
    "--append-result": "Every run is a file of its own: --result-dir DIR.",
    "--label": "Say it with --metadata label=NAME.",
    "--profile": "Profile the server with its own means.",
    "--top-p": """Put it into the request: --extra-body '{"top_p": 0.9}'.""",
    "--top-k": """Put it into the request: --extra-body '{"top_k": 40}'.""",
}
"""Option of `vllm bench serve` (0.11 to 0.32) that we do not have -> what to say instead."""


class SeveralValues(click.Option):
    """An option that takes one value or several, `--goodput ttft:200 tpot:50`, and may be repeated.

    `pattern` tells its further values from arguments of the command.
    """

    def __init__(self, *args: Any, pattern: str, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"multiple": True}))
        self._pattern = re.compile(pattern)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser of this option go on while what follows looks like a value."""
        super().add_to_parser(parser, ctx)
        for name in self.opts:
            option = parser._long_opt[name]
            option.process = self._greedy(option.process)

    def _greedy(self, process: Any) -> Any:
        def go_on(value: Any, state: Any) -> None:
            process(value, state)
            while state.rargs and self._pattern.fullmatch(state.rargs[0]):
                process(state.rargs.pop(0), state)

        return go_on


def hint_for(error: click.UsageError) -> str | None:
    """What to write instead of an option that only vLLM has."""
    return HINTS.get(error.option_name) if isinstance(error, click.NoSuchOption) else None
