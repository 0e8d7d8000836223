"""Which certificates a client of a server behind TLS trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

from ultrafast.core.errors import ConfigError


def tls_context(ca_file: Path | None, *, is_insecure: bool) -> ssl.SSLContext | None:
    """None: the system's authorities. `ca_file`: those in this PEM file instead. `is_insecure`: any certificate.

    Raises:
        ConfigError: the file holds no certificates.
    """
    if is_insecure:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=str(ca_file)) if ca_file else None
    except OSError as error:
        raise ConfigError(
            f"{ca_file} holds no certificates: {error}.", hint="Name a PEM file with the authority's certificate."
        ) from error
