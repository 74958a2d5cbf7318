"""An ONNX file that a person brings, held to an expert's contract."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, version_converter

from detector.model.export import OPSET
from detector.release.artifact import sha256_of
from detector.release.experts import LOGIT, PICTURES, ExpertContract
from detector.serving.session import Session
from updater.experts.build import ExpertError, proof_requests, require_finite, require_small

_LEAST_OPSET = 11
_KINDS = {int(TensorProto.UINT8): "uint8", int(TensorProto.FLOAT): "float32", int(TensorProto.INT64): "int64"}


def checked(path: Path, contract: ExpertContract, target: Path) -> ExpertContract:
    """Write the file to target as today's opset; return its contract, with digest and checkpoint.

    Raises ExpertError.
    """
    wanted = (
        f"{PICTURES}: {contract.inputs[0]}, and gives {LOGIT}: {contract.outputs[0]}, positive means fake"
    )
    try:
        require_small(path, path)
        model = onnx.load(str(path), load_external_data=False)
        onnx.checker.check_model(model)
    except OSError as error:
        raise ExpertError(f"{path} cannot be read ({error.strerror or error})") from error
    except ExpertError:
        raise
    # protobuf's and the checker's own errors have no common class
    except Exception as error:
        raise ExpertError(f"{path} is no ONNX file ({' '.join(str(error).split())[:150]})") from error
    if any(one.data_location == TensorProto.EXTERNAL for one in model.graph.initializer):
        raise ExpertError(f"{path} keeps its weights in another file: export it with them inside")
    custom = {node.domain for node in model.graph.node} - {"", "ai.onnx"}
    if custom or model.functions:
        raise ExpertError(
            f"{path} has operators of {', '.join(sorted(custom)) or 'functions'}: only ONNX's own run"
        )
    names = {one.name for one in model.graph.initializer}
    takes = [one for one in model.graph.input if one.name not in names]
    has = ", ".join(_said(one) for one in (*takes, *model.graph.output))
    if [one.name for one in takes] != [PICTURES] or [one.name for one in model.graph.output] != [LOGIT]:
        raise ExpertError(f"{path} has {has}; an expert takes {wanted}")
    if (takes[0].type.tensor_type.elem_type, model.graph.output[0].type.tensor_type.elem_type) != (
        TensorProto.UINT8,
        TensorProto.FLOAT,
    ):
        raise ExpertError(f"{path} has {has}; an expert takes {wanted}")
    onnx.save(_of_opset(path, model), str(target))
    _answers(path, target, contract, wanted)
    described = f"{path.name} (SHA-256 {sha256_of(path)[:12]})"
    return contract.model_copy(update={"digest": sha256_of(target), "checkpoint": described})


def _of_opset(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    version = next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    if not _LEAST_OPSET <= version <= OPSET:
        raise ExpertError(f"{path} is of opset {version}: export it with opset {OPSET}")
    try:
        return model if version == OPSET else version_converter.convert_version(model, OPSET)
    except Exception as error:  # it raises RuntimeError and its own, by operator
        why = " ".join(str(error).split())[:120]
        raise ExpertError(
            f"{path} of opset {version} cannot be brought to {OPSET} ({why}): export it so"
        ) from error


def _answers(path: Path, target: Path, contract: ExpertContract, wanted: str) -> None:
    """Ask it: some pictures at once, and each alone. Raises ExpertError."""
    many, _ = proof_requests(contract.side_px)
    try:
        session = Session(target, contract, threads=1)
        together = session.score(many)
        alone = [session.score({PICTURES: one[None]})[LOGIT] for one in many[PICTURES]]
    # ONNX Runtime's errors are of many classes
    except Exception as error:
        why = " ".join(str(error).split())[:150]
        raise ExpertError(f"{path} does not answer ({why}); an expert takes {wanted}") from error
    require_finite(path, together)
    worst = contract.differences({LOGIT: np.concatenate(alone)}, together)[LOGIT]
    if worst > contract.tolerance(LOGIT):
        raise ExpertError(
            f"{path} answers otherwise ({worst:.2g}) as other pictures come beside: no row may change another"
        )


def _said(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    shape = ", ".join(str(one.dim_value or one.dim_param or "?") for one in kind.shape.dim)
    return f"{value.name}: {_KINDS.get(kind.elem_type, 'another type')} ({shape})"
