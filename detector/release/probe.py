"""A small request inside the artifact, with the output it must get: asked before a release scores."""

from pathlib import Path

from detector.release.contract import Contract, conform
from detector.release.map_contract import MapContract
from detector.release.scan_contract import ScanContract
from detector.release.tensors import ModelOutput, Request, decode, encode


def write_probe(path: Path, request: Request, expected: ModelOutput) -> None:
    """Keep a request with what the exported graph says of it."""
    path.write_bytes(encode({**request, **expected}))


def read_probe(path: Path, contract: Contract | MapContract | ScanContract) -> tuple[Request, ModelOutput]:
    """The request, and the output expected of it. Raises TensorsError where they are not the contract's."""
    arrays = decode(path.read_bytes())
    takes = {one.name for one in contract.inputs}
    request = {name: array for name, array in arrays.items() if name in takes}
    expected = {name: array for name, array in arrays.items() if name not in takes}
    conform(expected, contract.outputs, conform(request, contract.inputs))
    return request, expected
