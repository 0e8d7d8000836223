"""The only package that touches libllama's C API.

`abi` declares and loads the library; `model`, `vocab`, `context` and `sampler` are thin owners of one C object each;
`executor` runs step plans on them. Everything here except `vocab` belongs to the one engine thread.
"""
