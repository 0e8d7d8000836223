"""A against B: is B worse, the same or better, by more than a margin, and how sure is that.

`conditions` refuses what does not compare, `metrics` reduces a run to its figures, `judge` weighs the differences,
`interleave` runs both sides in turns, `report` writes the outcome down. Nothing here prints or exits.
"""
