"""The conversations that every pipeline has to serve: the same lengths and texts for all, each begun with words of its own. Pure.

turn 0   [nonce] instructions, question        the nonce differs in each run of each pipeline
turn 1   all of that, the answer, a question   what a client that keeps the conversation sends
turn 2   ...
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from ultrafast.bench.words import NONCE_WORDS, Calibration, random_text
from ultrafast.bench.workload import PlannedRequest, Session

TURNS, CLIENTS = "turns", "clients"
_TEXT_KEY, _NONCE_KEY = 11, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One kind of load; lengths in tokens.

    Attributes:
        num_clients: conversations that go on at once; each is one client that waits for its answer.
        num_system: length of the instructions before the first question.
    """

    name: str
    num_clients: int
    num_conversations: int
    num_turns: int
    num_system: int
    num_user: int
    num_output: int

    @property
    def num_requests(self) -> int:
        return self.num_conversations * self.num_turns

    @property
    def title(self) -> str:
        """In words."""
        who = "one client" if self.num_clients == 1 else f"{self.num_clients} clients at once"
        return f"{who}, conversations of {self.num_turns} turn{'' if self.num_turns == 1 else 's'}"


def plan(workload: Workload, calibration: Calibration, *, seed: int, round_number: int, nonce: int) -> list[Session]:
    """The conversations of one run.

    `nonce` differs for each run; without it the same arguments would give texts that a cache may know.
    """
    sessions = []
    for number in range(workload.num_conversations):
        key = (crc32(workload.name.encode()), seed, round_number, number)
        opening = random_text(NONCE_WORDS, seed, _NONCE_KEY, nonce, number)
        turns = [
            PlannedRequest(
                index=number * workload.num_turns + turn,
                session=number,
                turn=turn,
                num_output_tokens=workload.num_output,
                messages=[{"role": "user", "content": _text(workload, calibration, opening, turn, key)}],
                prompt_id=f"ablate-{round_number}-{number}-{turn}",
            )
            for turn in range(workload.num_turns)
        ]
        sessions.append(Session(turns))
    return sessions


def _text(workload: Workload, calibration: Calibration, opening: str, turn: int, key: tuple[int, ...]) -> str:
    question = _words(calibration, workload.num_user, *key, turn)
    if turn > 0:
        return question
    # The instructions stand in the first question: not every chat template takes a system message.
    instructions = _words(calibration, max(1, workload.num_system - NONCE_WORDS), *key, turn, 1)
    return f"[{opening}] {instructions}\n\n{question}"


def _words(calibration: Calibration, num_tokens: int, *key: int) -> str:
    return random_text(max(1, round(num_tokens / calibration.tokens_per_word)), _TEXT_KEY, *key)
