"""A step names the chunks it computed: together they are its prefill tokens, and those of one prompt follow one another."""

from __future__ import annotations

from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.events import StepFinished


def test_the_chunks_of_a_prompt_are_named_in_order() -> None:
    simulation = Simulation(make_limits(max_step_tokens=64))
    simulation.add(make_request("long", 300, max_tokens=4))
    simulation.add(make_request("short", 20, max_tokens=30))
    simulation.run()
    steps = [event for event in simulation.events if isinstance(event, StepFinished)]
    for step in steps:
        assert sum(chunk.num_tokens for chunk in step.prefills) == step.num_prefill_tokens
        assert len(step.prefills) == step.num_prefill_sequences
    chunks = [chunk for step in steps for chunk in step.prefills if chunk.request_id == "long"]
    assert len(chunks) > 1
    assert [chunk.start for chunk in chunks] == [sum(before.num_tokens for before in chunks[:i]) for i in range(len(chunks))]
    assert sum(chunk.num_tokens for chunk in chunks) == 300
    assert steps[-1].prefills == ()
