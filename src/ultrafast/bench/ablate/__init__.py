"""Ablation: what each optimisation of the server saves by itself and together, against the pipeline that people write first.

Every pipeline is the real server with real settings; nothing is simulated. Layer: beside the rest of `bench`.
"""
