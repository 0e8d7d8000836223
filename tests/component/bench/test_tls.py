"""A server behind TLS with a certificate of its own."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.component.bench.truth_server import TruthServer

from ultrafast.bench.session import BenchSpec, measure
from ultrafast.bench.target import TargetError
from ultrafast.bench.workload import WorkloadSpec

pytestmark = pytest.mark.needs_program("openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("trust", ["ca_file", "insecure", "nothing"])
async def test_trust(certificate: tuple[Path, Path], trust: str, num_processes: int):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    truth = TruthServer(scale=0.0)
    server = await asyncio.start_server(truth.handle, "localhost", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    spec = BenchSpec(
        name="tls",
        url=f"https://localhost:{port}/v1",
        model="truth",
        workload=WorkloadSpec(num_requests=4, input_len="50", output_len="5"),
        num_warmups=0,
        num_processes=num_processes,
        ca_file=certificate[0] if trust == "ca_file" else None,
        is_insecure=trust == "insecure",
    )
    async with server:
        if trust == "nothing":
            with pytest.raises(TargetError, match="certificate"):
                await measure(spec)
        else:
            run = await measure(spec)
            assert all(request.is_ok for request in run.requests)
            assert [request.is_new_connection for request in run.requests] == [False] * 4 or num_processes > 1
