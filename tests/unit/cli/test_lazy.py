import subprocess
import sys


def test_serve_does_not_load_what_only_a_benchmark_needs():
    heavy = "[name for name in sys.modules if name == 'numpy' or name.startswith('ultrafast.bench')]"
    code = f"import sys, ultrafast.cli.main; print({heavy})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
