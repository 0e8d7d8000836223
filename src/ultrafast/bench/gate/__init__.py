"""The CI check: targets, what a run proves about them, and the verdict.

`targets` says what is asked, `samples` picks the values of a metric out of request records, `judge` weighs them,
`prechecks` says when a run proves nothing, `report` writes the outcome down. `live` sends requests until the verdict is
certain. Nothing here prints or exits.
"""
