"""One request from `add` to its terminal event: the scheduler's own, mutable record of it.

    tokens   [ prompt ............ | output so far ...... ]
             [0 .. num_computed)   [num_computed ......... )
              KV exists             still to be computed: 1 token left = decode, more = prefill

What starts, moves and ends it is in `state.py`; here is only what is true of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultrafast.core.events import DropReason, RequestFinished
from ultrafast.core.request import FinishReason, Request, RequestState
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier, TierPolicy
from ultrafast.kv.segment import SequenceKv
from ultrafast.sched.speculation.track import Track
from ultrafast.sched.speculation.trust import Trust

PACE = 0.9
"""Part of its TPOT objective at which a stream is held back at most on average: the rest is for what cannot be planned."""
_MAX_BEHIND = 10.0
"""A stream that is further behind than so many objectives is not hurried any more: what made it late is over, or it is lost."""


class LiveRequest:
    """Mutable state of a request; owned by the scheduler, never seen outside `sched`.

    Attributes:
        order: grows with every request added; breaks ties of arrival. arrival: (arrival_s, order).
        num_given: tokens it came with, output of an earlier life among them.
        namespace: whose KV it may share; None = nobody's.
        own_end: prompt and output tokens at which it ends by its own limit. max_length: the same, or where the model's context
            or the pool ends, if that is sooner.
        tokens: prompt and output so far. Made when somebody asks: see `fold`.
        num_computed: leading tokens whose KV exists in `sequence`.
        sequence: its KV while it runs, else None.
        can_reuse: False after a prefix copy that the engine could not prove: it is computed in full from then on.
        rank: urgency of the tier that serves; 0 is the most urgent.
        tier: the tier that serves; another than the request's own when `downgrade_reason` says why.
        ttft_s, tpot_s: its objectives, seconds: its own or its tier's.
        last_run_s: when it last was in a step (or got its place), seconds. last_token_s: when its newest token was drawn.
        rank: of its tier; 0 is the most urgent.
        urgency: its rank, or that of a more urgent request which waits for the prefix it computes (no priority inversion).
        blocked_version: the ledger's version at which it was refused a start: while that stands, nothing has been freed and
            asking again (which costs a match of the whole prompt) is in vain. -1 = ask.
        num_cached_first: prompt tokens skipped at its first scheduling; None before.
        num_host_tokens, num_disk_tokens: of `num_cached_first`, those that came from there.
        is_kept: it got its sequence on a turn that its tier was owed; see `turns`.
        total_computed: tokens of all its forward passes, recomputation included, wrong drafts not.
        num_once: leading tokens that had been computed when it last lost its place; num_recomputed: of `total_computed`, those
            among them that were computed again for want of a copy.
        speculation: what its guesses have taught; None before the first. draft_trust: those of the draft model.
    """

    __slots__ = (
        "arrival",
        "arrival_s",
        "blocked_version",
        "can_reuse",
        "downgrade_reason",
        "draft_trust",
        "first_token_s",
        "is_kept",
        "last_run_s",
        "last_token_s",
        "max_length",
        "namespace",
        "num_cached_first",
        "num_computed",
        "num_disk_tokens",
        "num_given",
        "num_host_tokens",
        "num_once",
        "num_pauses",
        "num_preemptions",
        "num_prompt",
        "num_recomputed",
        "order",
        "own_end",
        "rank",
        "request",
        "request_id",
        "scheduled_s",
        "sequence",
        "speculation",
        "state",
        "tier",
        "tokens",
        "total_computed",
        "tpot_s",
        "ttft_s",
        "urgency",
    )

    tokens: list[int]

    def __init__(self, request: Request, order: int, policy: TierPolicy | None = None, rank: int | None = None) -> None:
        """`rank`: urgency of the request's tier; None = that of the default order."""
        self.request = request
        self.request_id = request.request_id
        self.arrival_s = request.arrival_s
        self.arrival = (request.arrival_s, order)
        self.num_prompt = request.num_prompt_tokens
        self.num_given = self.num_prompt + len(request.output_tokens)
        self.own_end = self.max_length = self.num_prompt + request.params.max_tokens
        self.namespace: str | None = request.cache_salt if request.use_cache else None
        self.downgrade_reason: DropReason | None = None
        default_rank = request.tier.rank
        self.serve_in(request.tier, policy or DEFAULT_POLICIES[default_rank], default_rank if rank is None else rank)
        self.last_run_s = request.arrival_s
        self.last_token_s = request.arrival_s
        self.num_pauses = 0
        self.order = order
        self.state = RequestState.WAITING
        self.num_computed = 0
        self.is_kept = False
        self.sequence: SequenceKv | None = None
        self.can_reuse = request.use_cache
        self.blocked_version = -1
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.num_cached_first: int | None = None
        self.total_computed = 0
        self.num_once = 0
        self.num_recomputed = 0
        self.num_host_tokens = 0
        self.num_disk_tokens = 0
        self.num_preemptions = 0
        self.speculation: Track | None = None
        self.draft_trust: Trust | None = None

    if not TYPE_CHECKING:  # for the type checker `tokens` is an attribute like the others

        def __getattr__(self, name: str) -> list[int]:
            """Make `tokens`; only reached while there is no such list."""
            if name != "tokens":
                raise AttributeError(f"a LiveRequest has no {name}")
            self.tokens = [*self.request.prompt_tokens, *self.request.output_tokens]
            return self.tokens

    def fold(self) -> None:
        """It waits now: let go of the list of its tokens, which equals what the request holds and is made again when asked for.

        Each full garbage collection visits every element of every list: those of a long queue held up a step for 76 ms.
        """
        if self.state is RequestState.WAITING:
            self.tokens = []  # it may have been made already, or not
            del self.tokens

    def serve_in(self, tier: ServiceTier, policy: TierPolicy, rank: int) -> None:
        """Set the tier that serves, and the objectives that the request does not bring itself. Before it is queued."""
        slo = self.request.slo
        self.tier = tier
        self.rank = self.urgency = rank
        self.ttft_s = policy.ttft_s if slo.ttft_s is None else slo.ttft_s
        self.tpot_s = policy.tpot_s if slo.tpot_s is None else slo.tpot_s

    def follow(self, rank: int | None) -> None:
        """Requests of this rank, the most urgent of them, wait for its prefix; None = nobody does."""
        self.urgency = self.rank if rank is None else min(self.rank, rank)

    @property
    def deadline_s(self) -> float:
        """When its first token is due, seconds."""
        return self.arrival_s + self.ttft_s

    @property
    def token_due_s(self) -> float:
        """When its next token is due, seconds: one objective after the last one, and early enough for the mean so far.

        A gap that became longer than it should is so made up for by the next ones.
        """
        due_s = self.last_token_s + self.tpot_s
        if self.first_token_s is None:
            return due_s
        paced_s = self.first_token_s + PACE * self.tpot_s * (len(self.tokens) - self.num_given)
        return paced_s if paced_s < due_s and due_s - paced_s <= _MAX_BEHIND * self.tpot_s else due_s

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far, without making their list for one that never started."""
        return self.num_given if self.state is RequestState.WAITING else len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next draw; at least 1."""
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        return len(self.tokens) - self.num_computed == 1

    @property
    def level_namespace(self) -> str:
        """Where its KV is kept outside the device; nobody else looks where a private request's is."""
        return self.request.cache_salt if self.request.use_cache else f"\0{self.request_id}"

    def finished_event(
        self, reason: FinishReason, now: float, error: str | None, drop_reason: DropReason | None, retry_after_s: float | None
    ) -> RequestFinished:
        """Make the terminal event, while the state is still the one that it ends."""
        return RequestFinished(
            request_id=self.request_id,
            reason=reason,
            tier=self.tier,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_cached_tokens=self.num_cached_first or 0,
            num_computed_tokens=self.total_computed,
            num_output_tokens=self.num_tokens - self.num_prompt,
            arrival_s=self.request.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=now,
            num_preemptions=self.num_preemptions,
            num_recomputed_tokens=self.num_recomputed,
            error=error,
            num_host_tokens=self.num_host_tokens,
            num_disk_tokens=self.num_disk_tokens,
            num_pauses=self.num_pauses,
            drop_reason=drop_reason,
            retry_after_s=retry_after_s,
            is_internal=self.request.is_internal,
        )
