"""The contract of `propose`, the same for every executor with a draft model: its sequences follow the plan to the token.

The draft model is the target itself, so a guess is what the target would say: any token missing or left over in a draft sequence
shows as another guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.executors import CAPACITY_TOKENS, GREEDY, MAX_STEP_TOKENS, NUM_SEQUENCES, PROMPT, Driver, request

from ultrafast.core.draft import DraftItem, DraftPlan
from ultrafast.core.request import SamplingParams
from ultrafast.engine.executor import Executor
from ultrafast.engine.fake_draft import DraftingFakeExecutor, FakeDraftModel
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.options import EngineOptions
from ultrafast.sched.limits import DraftLimits

COUNT = 6
PROMPT_LENGTH = len(PROMPT)
SEEDED = SamplingParams(temperature=0.7, top_k=40, top_p=0.95, seed=7, max_tokens=64, ignore_eos=True)
WRONG = 7


def _make_fake() -> Executor:
    model = FakeDraftModel(DraftLimits(CAPACITY_TOKENS, 3, CAPACITY_TOKENS, MAX_STEP_TOKENS))
    limits = {"capacity_tokens": CAPACITY_TOKENS, "num_sequences": NUM_SEQUENCES, "max_step_tokens": MAX_STEP_TOKENS}
    return DraftingFakeExecutor(model, **limits)


def _make_llama(model_path: Path) -> Executor:
    options = EngineOptions(
        str(model_path),
        draft_model_path=str(model_path),
        kv_capacity_tokens=CAPACITY_TOKENS,
        max_step_tokens=MAX_STEP_TOKENS,
        num_threads=1,
        threadpool_poll=0,
        max_num_running=NUM_SEQUENCES // 2,
        max_num_cached=NUM_SEQUENCES // 2,
    )
    return LlamaExecutor.load(options, lambda *_: None)


@pytest.fixture(scope="module", params=["fake", pytest.param("llama", marks=pytest.mark.integration)])
def drafting_executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made = _make_fake() if request.param == "fake" else _make_llama(request.getfixturevalue("model_path"))
    yield made
    made.close()


@pytest.fixture
def driver(drafting_executor: Executor) -> Iterator[Driver]:
    used = Driver(drafting_executor)
    yield used
    used.executor.propose(DraftPlan(freed=(0, 1, 2)))
    used.clear()


@pytest.fixture(scope="module")
def alone(drafting_executor: Executor) -> dict[SamplingParams, list[int]]:
    """What the target says to the prompt."""
    said = {}
    for params in (GREEDY, SEEDED):
        driver = Driver(drafting_executor)
        driver.begin(request("alone", params=params))
        said[params] = driver.generate(request("alone", params=params), 7, COUNT)
        driver.clear()
    return said


def guess(driver: Driver, *items: DraftItem, freed: tuple[int, ...] = ()) -> dict[str, tuple[int, ...]]:
    result = driver.executor.propose(DraftPlan(freed, items))
    assert not result.is_broken
    assert result.duration_s >= sum(one.duration_s for one in result.passes) * 0.99
    return dict(result.drafts)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_model_that_thinks_alike_guesses_alike(driver: Driver, alone: dict[SamplingParams, list[int]], params) -> None:
    driver.begin(request("r", params=params))
    assert guess(driver, DraftItem("r", 0, 0, PROMPT, 4, 0)) == {"r": tuple(alone[params][:4])}


def test_a_text_may_be_read_in_pieces(driver: Driver, alone: dict[SamplingParams, list[int]]) -> None:
    driver.begin(request("r"))
    assert guess(driver, DraftItem("r", 0, 0, PROMPT[:30])) == {}
    assert guess(driver, DraftItem("r", 0, 30, PROMPT[30:-1])) == {}
    assert guess(driver, DraftItem("r", 0, PROMPT_LENGTH - 1, PROMPT[-1:], 3, 0)) == {"r": tuple(alone[GREEDY][:3])}


def test_guesses_that_were_right_need_not_be_read_again(driver: Driver, alone: dict[SamplingParams, list[int]]) -> None:
    said = alone[GREEDY]
    driver.begin(request("r"))
    guess(driver, DraftItem("r", 0, 0, PROMPT, 3, 0))
    # The last guess was not read, and the target's own token came on top.
    assert guess(driver, DraftItem("r", 0, PROMPT_LENGTH + 2, tuple(said[2:4]), 2, 4)) == {"r": tuple(said[4:6])}


def test_wrong_guesses_are_forgotten(driver: Driver, alone: dict[SamplingParams, list[int]]) -> None:
    said = alone[GREEDY]
    driver.begin(request("r"))
    guess(driver, DraftItem("r", 0, 0, (*PROMPT, WRONG), 4, 1))
    assert guess(driver, DraftItem("r", 0, PROMPT_LENGTH, (said[0],), 3, 1)) == {"r": tuple(said[1:4])}


def test_several_texts_do_not_mix(driver: Driver, alone: dict[SamplingParams, list[int]]) -> None:
    driver.begin(request("r"), request("s", params=SEEDED), request("other", range(300, 340)))
    items = (
        DraftItem("r", 0, 0, PROMPT, 4, 0),
        DraftItem("other", 1, 0, tuple(range(300, 340))),
        DraftItem("s", 2, 0, PROMPT, 2, 0),
    )
    result = driver.executor.propose(DraftPlan((), items))
    drafts = dict(result.drafts)
    assert drafts.keys() == {"r", "s"}
    assert drafts["r"][:2] == tuple(alone[GREEDY][:2])  # the others are too close to a tie to compare them across batches
    assert drafts["s"] == tuple(alone[SEEDED][:2])
    assert [one.num_tokens for one in result.passes] == [40, 100, 2, 1, 1]


def test_a_freed_sequence_starts_afresh(driver: Driver, alone: dict[SamplingParams, list[int]]) -> None:
    driver.begin(request("r"), request("other", range(300, 340)))
    guess(driver, DraftItem("other", 0, 0, tuple(range(300, 340))))
    assert guess(driver, DraftItem("r", 0, 0, PROMPT, 2, 0), freed=(0,)) == {"r": tuple(alone[GREEDY][:2])}


def test_a_text_that_would_end_is_not_guessed_beyond(driver: Driver, alone: dict[SamplingParams, list[int]]) -> None:
    said = alone[GREEDY]
    stop = next(token for token in said[1:] if token != said[0])
    params = replace(GREEDY, stop_token_ids=(stop,))
    driver.begin(request("r", params=params))
    assert guess(driver, DraftItem("r", 0, 0, PROMPT, 5, 0)) == {"r": tuple(said[: said.index(stop)])}


def test_drafting_leaves_the_target_alone(driver: Driver, alone: dict[SamplingParams, list[int]]) -> None:
    driver.begin(request("r"))
    first = driver.prefill(request("r"), 0)
    guess(driver, DraftItem("r", 0, 0, (*PROMPT, WRONG), 4, 1))
    assert driver.decode(request("r"), 0, first, COUNT) == alone[GREEDY]
