"""A fake engine with a fake draft model: it knows how the fake model continues a text, as far as it has really read the text.

So a draft sequence that is out of step with its request (a token missing, a wrong guess left behind) guesses wrong from then on,
and a test that counts right guesses sees it. Strict like `FakeExecutor`: an item that starts where nothing was written, a pass
that is too large or a pool that overflows fails an assert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ultrafast.core.draft import DraftItem, DraftPass, DraftPlan, DraftResult
from ultrafast.core.request import Request
from ultrafast.engine.fake import FakeExecutor, draw_token, extend_digest, is_end_of
from ultrafast.sched.limits import DraftLimits


@dataclass(frozen=True, slots=True)
class FakeDraftModel:
    """What the draft model is like.

    Attributes:
        wrong_percent: so many guesses of a hundred are wrong, at places that depend on the text alone.
        pass_s, token_s: a pass takes pass_s + token_s * tokens, seconds.
    """

    limits: DraftLimits
    wrong_percent: int = 0
    pass_s: float = 0.001
    token_s: float = 0.0002


class DraftingFakeExecutor(FakeExecutor):
    """Implements `engine.executor.Executor`, `propose` included.

    Attributes:
        is_draft_broken: a test sets it: the draft model fails from then on.
    """

    def __init__(self, draft: FakeDraftModel, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._draft = draft
        self._digests: list[list[int]] = [[] for _ in range(draft.limits.num_sequences)]
        self.is_draft_broken = False

    @property
    def num_draft_cells(self) -> int:
        return sum(len(digests) for digests in self._digests)

    def propose(self, plan: DraftPlan) -> DraftResult:
        if self.is_draft_broken:
            return DraftResult(is_broken=True)
        for seq_id in plan.freed:
            self._digests[seq_id].clear()
        assert len({item.seq_id for item in plan.items}) == len(plan.items), "a draft sequence appears twice"
        passes = []
        for item in plan.items:
            self._start(item)
            if not item.max_drafts:
                passes.append(self._pass(len(item.tokens)))
        drafting = [item for item in plan.items if item.max_drafts]
        drafts = {item.request_id: self._guess(item) for item in drafting}
        if drafting:
            passes.append(self._pass(sum(len(item.tokens) for item in drafting)))
        num_passes = max((len(guesses) for guesses in drafts.values()), default=0)
        passes += [self._pass(sum(len(g) > number for g in drafts.values())) for number in range(1, num_passes)]
        duration_s = sum(one.duration_s for one in passes)
        if self._clock is not None:
            self._clock.advance(duration_s)
        return DraftResult(tuple(drafts.items()), tuple(passes), duration_s)

    def _start(self, item: DraftItem) -> None:
        digests = self._digests[item.seq_id]
        assert item.tokens, f"{item.request_id} has nothing to read"
        assert item.start <= len(digests), f"draft sequence {item.seq_id} has {len(digests)} cells, not {item.start}"
        del digests[item.start :]
        for token in item.tokens:
            self._read_token(digests, token)

    def _guess(self, item: DraftItem) -> tuple[int, ...]:
        request, digests = self._begun[item.request_id], self._digests[item.seq_id]
        guesses: list[int] = []
        while len(guesses) < item.max_drafts:
            if guesses:
                self._read_token(digests, guesses[-1])
            token = self._guess_token(request, digests[-1], item.output_index + len(guesses))
            if is_end_of(token, request.params):
                break
            guesses.append(token)
        return tuple(guesses)

    def _guess_token(self, request: Request, digest: int, output_index: int) -> int:
        right = draw_token(digest, request.params, output_index, self._vocab_size, self._end_every, self._loop)
        is_wrong = extend_digest(digest, 0) % 100 < self._draft.wrong_percent
        return 1 + right % (self._vocab_size - 1) if is_wrong else right

    def _read_token(self, digests: list[int], token: int) -> None:
        digests.append(extend_digest(digests[-1] if digests else 0, token))
        assert self.num_draft_cells <= self._draft.limits.kv_capacity_tokens, "the draft model's pool overflows"
        assert len(digests) <= self._draft.limits.max_request_tokens, "the draft model cannot read so long a text"

    def _pass(self, num_tokens: int) -> DraftPass:
        assert num_tokens <= self._draft.limits.max_pass_tokens, f"a draft pass of {num_tokens} tokens"
        return DraftPass(num_tokens, self._draft.pass_s + self._draft.token_s * num_tokens)
