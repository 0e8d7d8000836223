import numpy as np
import pytest

from ultrafast.bench.lengths import parse_lengths
from ultrafast.bench.prompt_files import FilePrompt
from ultrafast.bench.tier_mix import assign_tiers, parse_tier_mix
from ultrafast.bench.traces import TraceEntry
from ultrafast.bench.words import WORDS, Calibration, random_text
from ultrafast.bench.workload import WorkloadSpec, plan_prompts, plan_random, plan_trace, planned_duration_s
from ultrafast.core.errors import ConfigError

CALIBRATION = Calibration(tokens_per_word=1.0, num_fixed_tokens=5.0)


def spec(**options) -> WorkloadSpec:
    return WorkloadSpec(**({"num_requests": 10, "input_len": "100", "output_len": "20"} | options))


def content(turn) -> str:
    return turn.messages[0]["content"]


@pytest.mark.parametrize(("text", "low", "high"), [("7", 7, 7), ("uniform:3-9", 3, 9), ("lognormal:50,0.5,80", 1, 80)])
def test_lengths(text: str, low: int, high: int):
    draw, generator = parse_lengths(text), np.random.default_rng(1)
    drawn = {draw(generator) for _ in range(2000)}
    assert low <= min(drawn) <= max(drawn) <= high
    assert max(drawn) == high


def test_the_median_of_lognormal_lengths():
    draw, generator = parse_lengths("lognormal:200,0.7"), np.random.default_rng(1)
    assert np.median([draw(generator) for _ in range(5000)]) == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "x", "uniform:9-3", "uniform:0-3", "lognormal:5", "lognormal:0,1", "normal:1,2", "1.5"]
)
def test_bad_lengths(text: str):
    with pytest.raises(ConfigError):
        parse_lengths(text)


def test_calibration_gives_back_the_line_it_was_measured_on():
    calibration = Calibration.through((40, 65), (240, 325))
    assert calibration.tokens_per_word == pytest.approx(1.3)
    assert calibration.num_fixed_tokens == pytest.approx(13)
    assert calibration.num_words(13 + 130) == 100
    assert calibration.num_words(1) == 1


def test_words_are_distinct_and_texts_reproducible():
    assert len(set(WORDS)) > 200
    assert random_text(50, 1, 2) == random_text(50, 1, 2)
    assert random_text(50, 1, 2) != random_text(50, 1, 3)
    assert len(random_text(50, 1).split()) == 50


def test_prompts_have_the_wanted_length_and_no_common_start():
    turns = [session.turns[0] for session in plan_random(spec(), CALIBRATION)]
    assert {len(content(turn).split()) for turn in turns} == {95}
    starts = {" ".join(content(turn).split()[:8]) for turn in turns}
    assert len(starts) == 10


def test_another_seed_makes_other_prompts():
    one, other = plan_random(spec(seed=1), CALIBRATION), plan_random(spec(seed=2), CALIBRATION)
    assert not {content(s.turns[0]) for s in one} & {content(s.turns[0]) for s in other}
    assert plan_random(spec(seed=1), CALIBRATION) == one


def test_a_shared_prefix_is_shared_and_the_rest_is_not():
    texts = [content(session.turns[0]).split() for session in plan_random(spec(num_shared_tokens=45), CALIBRATION)]
    assert {tuple(text[:40]) for text in texts} == {tuple(texts[0][:40])}
    assert len({tuple(text[40:]) for text in texts}) == 10
    assert {len(text) for text in texts} == {95}


def test_multi_turn_sessions_hold_all_requests():
    sessions = plan_random(spec(num_turns=4), CALIBRATION)
    assert [len(session.turns) for session in sessions] == [4, 4, 2]
    assert [turn.index for session in sessions for turn in session.turns] == list(range(10))
    assert sessions[0].turns[1].due_s is None


def test_open_loop_is_due_closed_is_not():
    assert planned_duration_s(plan_random(spec(), CALIBRATION)) is None
    assert planned_duration_s(plan_random(spec(arrival="constant", rate_per_s=5.0), CALIBRATION)) == 2.0


def test_own_prompts_get_a_nonce_unless_the_cache_may_be_warm():
    prompts = [FilePrompt(({"role": "user", "content": "hello"},), 7), FilePrompt(({"role": "user", "content": "bye"},))]
    cold = [session.turns[0] for session in plan_prompts(spec(num_requests=4), prompts)]
    assert [turn.num_output_tokens for turn in cold] == [7, 20, 7, 20]
    assert all(content(turn).startswith("[") for turn in cold)
    assert len({content(turn) for turn in cold}) == 4
    warm = [session.turns[0] for session in plan_prompts(spec(num_requests=4, is_cold=False), prompts)]
    assert [content(turn) for turn in warm] == ["hello", "bye", "hello", "bye"]


def test_a_nonce_goes_before_everything_of_a_prompt_in_parts():
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    prompts = [FilePrompt(({"role": "user", "content": [picture]},)), FilePrompt(({"role": "user", "content": None},))]
    first, second = [session.turns[0].messages[0]["content"] for session in plan_prompts(spec(num_requests=2), prompts)]
    assert first[0]["text"].startswith("[")
    assert first[1] == picture
    assert second.startswith("[")


def test_trace_blocks_with_the_same_id_have_the_same_text():
    entries = [TraceEntry(0.0, 1100, 5, None, (1, 2)), TraceEntry(1.0, 1100, 5, "flex", (1, 3)), TraceEntry(2.0, 100, 5)]
    turns = [session.turns[0] for session in plan_trace(spec(num_requests=3), entries, Calibration())]
    first, second = content(turns[0]).split(), content(turns[1]).split()
    assert first[:512] == second[:512]
    assert first[512:1024] != second[512:1024]
    assert [len(content(turn).split()) for turn in turns] == [1100, 1100, 100]
    assert [turn.due_s for turn in turns] == [0.0, 1.0, 2.0]
    assert [turn.tier for turn in turns] == [None, "flex", None]


@pytest.mark.parametrize(
    ("text", "mix"),
    [
        ("ultrafast=0.8,flex=0.2", {"ultrafast": 0.8, "flex": 0.2}),
        ("ultrafast=80, flex=20", {"ultrafast": 0.8, "flex": 0.2}),
        ("flex", {"flex": 1.0}),
    ],
)
def test_tier_mix(text: str, mix: dict[str, float]):
    assert parse_tier_mix(text) == pytest.approx(mix)


@pytest.mark.parametrize("text", ["", "a=0.5", "a=x", "a=1.5,b=-0.5", "=1", "a=0.5,b=0.6"])
def test_bad_tier_mix(text: str):
    with pytest.raises(ConfigError):
        parse_tier_mix(text)


def test_tiers_have_their_exact_shares():
    tiers = assign_tiers({"ultrafast": 0.8, "flex": 0.2}, 50, seed=3)
    assert (tiers.count("ultrafast"), tiers.count("flex")) == (40, 10)
    assert len(assign_tiers({"a": 1 / 3, "b": 2 / 3}, 10, seed=3)) == 10
    assert assign_tiers({}, 2, seed=0) == [None, None]
