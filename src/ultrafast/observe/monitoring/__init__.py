"""Prometheus rules and the Grafana dashboard, made from the settings so that they carry the user's own objectives.

Pure: values in, text out. `deploy/` holds what comes out for the default settings.
"""
