"""All pipelines get the same conversations, and none of them a text that somebody has seen."""

from tests.unit.bench.ablate.samples import MANY, ONE

from ultrafast.bench.ablate.conversations import plan
from ultrafast.bench.words import Calibration

CALIBRATION = Calibration(1.25, 20)


def texts(workload, nonce, round_number=0, seed=1):
    sessions = plan(workload, CALIBRATION, seed=seed, round_number=round_number, nonce=nonce)
    return [[turn.messages[0]["content"] for turn in session.turns] for session in sessions]


def without_nonce(text):
    return text.partition("] ")[2] or text


def test_only_the_nonce_differs_between_two_pipelines():
    first, second = texts(MANY, 1), texts(MANY, 2)
    assert [[without_nonce(text) for text in turns] for turns in first] == [
        [without_nonce(text) for text in turns] for turns in second
    ]
    openings = [turns[0].partition("]")[0] for turns in (*first, *second)]
    assert len(set(openings)) == 2 * MANY.num_conversations


def test_every_text_of_every_round_and_workload_is_new():
    all_texts = [
        text
        for workload in (ONE, MANY)
        for number in range(3)
        for turns in texts(workload, 1, number)
        for text in map(without_nonce, turns)
    ]
    assert len(set(all_texts)) == len(all_texts)


def test_sizes():
    sessions = plan(ONE, CALIBRATION, seed=1, round_number=0, nonce=1)
    turns = [turn for session in sessions for turn in session.turns]
    assert [turn.index for turn in turns] == list(range(ONE.num_requests))
    assert {turn.num_output_tokens for turn in turns} == {ONE.num_output}
    num_words = [len(turn.messages[0]["content"].split()) for turn in turns]
    assert num_words == [8 + 10 + 4, 4, 4] * 2  # nonce, (20 - 8) / 1.25 of instructions, 5 / 1.25 of question


def test_titles():
    assert ONE.title == "one client, conversations of 3 turns"
    assert MANY.title == "4 clients at once, conversations of 2 turns"
