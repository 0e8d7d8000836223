"""The command line: one small file per command. Data to stdout, logs and progress to stderr; an error ends with `hint:`.

Exit codes: 0 done, 1 it failed, 2 the command line or a setting is wrong, 130 interrupted.
"""
