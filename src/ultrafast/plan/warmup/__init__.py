"""`ultrafast warmup`: from a request log to a warm-up plan.

shapes.py     prompt lengths and numbers of streams, clustered
prefixes.py   beginnings that many prompts share, by what they save
make.py       both together
"""
