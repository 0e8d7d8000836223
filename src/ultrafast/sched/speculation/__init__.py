"""Guessing the tokens that come next, so that one forward pass can check several: copied text costs a fraction of the steps.

    ngrams.py        what followed the last few tokens when they stood there before (prompt lookup)
    acceptance.py    how likely a guess is right
    step_times.py    how long a decode step takes by its number of rows
    choice.py        how many guesses pay, from these two
    trust.py         whether a request goes on guessing; track.py: with repetitions of its text
    draft_kv.py, draft_times.py, model_drafts.py
                     the same for guesses of a draft model: its KV, its time, and when to ask it
    gain.py          what it was worth
    drafting.py      the face: puts drafts into a plan, learns from what became of them

Pure, and never needed for correctness: the engine draws each token from the model's own logits, a guess only decides how many
draws fit into a step (Leviathan, Kalman, Matias: Fast inference from transformers via speculative decoding, 2023; for draws
with a fixed random number per position, accepting a guess means that the draw itself is that token).
"""
