"""A prompt builder that loads the tokenizer for each prompt makes the same tokens, and gives back what it loads."""

import pytest
from tests.unit.serving import templates
from tests.unit.serving.fakes import FakeTokenizer

from ultrafast.core.errors import ModelFileError
from ultrafast.serving.prompts import Conversation, PromptBuilder
from ultrafast.serving.reloading import ReloadingPromptBuilder
from ultrafast.serving.segments import SegmentCache

CHATML = next(iter(templates.ALL.values()))
CHAT = Conversation([{"role": "user", "content": "Hello there"}], [])


class Loaded(FakeTokenizer):
    """Counts itself."""

    num_open = num_loaded = 0

    def __init__(self):
        super().__init__(CHATML)
        Loaded.num_open += 1
        Loaded.num_loaded += 1

    def close(self):
        Loaded.num_open -= 1


@pytest.fixture(autouse=True)
def _fresh():
    Loaded.num_open = Loaded.num_loaded = 0


def builder(cache=None, load=Loaded):
    return ReloadingPromptBuilder(FakeTokenizer(CHATML), None, cache or SegmentCache(), load)


def test_same_tokens_one_load_for_each_prompt_none_left_open():
    prompts = builder()
    items = prompts.render(CHAT).items
    wanted = PromptBuilder(FakeTokenizer(CHATML)).tokens(items)
    assert [prompts.tokens(items) for _ in range(3)] == [wanted] * 3
    assert (Loaded.num_loaded, Loaded.num_open) == (3, 0)


def test_it_is_loaded_even_if_every_text_is_known():
    cache = SegmentCache()
    prompts = builder(cache)
    items = prompts.render(CHAT).items
    prompts.tokens(items)
    prompts.tokens(items)
    assert cache.stats.num_hits > 0
    assert Loaded.num_loaded == 2


def test_loading_never_happens_on_the_event_loop():
    prompts = builder()
    assert prompts.num_uncached_chars(prompts.render(CHAT).items) > 4096


def test_what_loading_raises_comes_through():
    def fail():
        raise ModelFileError("gone")

    prompts = builder(load=fail)
    with pytest.raises(ModelFileError, match="gone"):
        prompts.tokens(prompts.render(CHAT).items)


def test_a_cache_of_no_bytes_keeps_nothing():
    cache = SegmentCache(0)
    prompts = PromptBuilder(FakeTokenizer(CHATML), None, cache)
    items = prompts.render(CHAT).items
    prompts.tokens(items)
    prompts.tokens(items)
    assert (cache.stats.num_hits, cache.stats.num_entries, cache.stats.num_misses > 1) == (0, 0, True)
