"""A file's statements about its origin: its C2PA credential, and metadata that nobody signed.

To be called in a sandboxed child only: the media is hostile. Nothing here is fetched: neither a credential
that the file only refers to, nor the state of a certificate. All that is read is a claim.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from typing import Any, get_args

import c2pa
from PIL import ExifTags, Image

from ingest.records import Declaration, Metadata, Provenance, ProvenanceState
from ingest.sandbox.containers import boxes, demuxer
from ingest.sandbox.decode import FORMATS, register_heif

# https://cv.iptc.org/newscodes/digitalsourcetype; the last two are C2PA's own.
_SOURCE_TYPES: dict[str, Declaration] = {
    **dict.fromkeys(("trainedAlgorithmicMedia", "algorithmicMedia", "trainedAlgorithmicData"), "generated"),
    **dict.fromkeys(("compositeWithTrainedAlgorithmicMedia", "compositeSynthetic"), "edited_with_ai"),
    **dict.fromkeys(("digitalCapture", "computationalCapture", "negativeFilm", "positiveFilm"), "captured"),
    **{"composite": "composite", "compositeCapture": "composite", "print": "captured"},
}
_BY_WEIGHT: tuple[Declaration, ...] = get_args(Declaration)
# They state the origin of the whole, any other action that of a part.
_ORIGINS = ("c2pa.created", "c2pa.opened")
# By the library's state, or by how its error begins.
_STATES: dict[str | None, ProvenanceState] = {
    **{"Trusted": "valid_trusted", "Valid": "valid_untrusted", "Invalid": "invalid"},
    **{"ManifestNotFound": "none", "Remote": "remote"},
}
_MOST_STORE_BYTES = 8_388_608
_MOST_REPORT_CHARS = 4_194_304
_MOST_ANCESTORS = 100
_MOST_ENTRIES = 16

# The type of a manifest store's box, in one piece in every format; long, for it is sought in whole files.
_STORE = b"jumdc2pa\x00\x11\x00\x10\x80\x00\x00\xaa\x008\x9bq"
# XMP lies in a file as text; DigitalSourceType is an attribute, an element or a resource of it.
_XMP_BYTES = _END_BYTES = _TEXT_CHARS = 65_536
_SOURCE_TYPE = re.compile(
    rb"DigitalSourceType(?:\s*=\s*[\"']|[^<>]{0,80}?>|[^<>]{0,80}?rdf:resource=[\"'])\s*(?:https?:[\w./]*/)?(\w+)"
)
# China's label of generated media (GB 45438-2025, annex E): 1 is generated; 2 and 3 only say that it may be.
_LABEL = re.compile(rb"Label(?:\W|quot){1,40}1(?:\W|quot){1,40}ContentProducer")
# Credits that an editor writes into XMP or IPTC, and a mark of Samsung's behind the picture.
_MARKS: dict[bytes, Declaration] = {
    **dict.fromkeys((b"Made with Google AI", b"Apple Image Playground"), "generated"),
    **dict.fromkeys((b"Edited with Google AI", b"Apple Photos Clean Up", b'"genAIType":1'), "edited_with_ai"),
}
# Text chunks, EXIF fields and a film's tags, by name, in which front ends write how they made a picture.
_WRITERS = (
    ("ComfyUI", {"prompt", "workflow", "Make", "Model", "UserComment", "udta"}, r'"(class_type|nodes)\\*"'),
    ("InvokeAI", {"invokeai_metadata", "invokeai_graph", "sd-metadata"}, ""),
    ("NovelAI", {"Software"}, "^NovelAI"),
    ("Midjourney", {"Description"}, "Job ID: [0-9a-f-]{36}"),
    ("Stable Diffusion", {"parameters", "UserComment"}, r'\bSteps: \d|"(steps|sampler)"'),
)


def read_provenance(data: bytes, anchors: str) -> Provenance:
    """Read a file's statements about its origin; whatever fails leaves `unreadable`, or no metadata.

    anchors: PEM of the certificates that signers are trusted by; empty: none is.
    """
    try:
        metadata = _metadata(data)
    except Exception:  # parsers of EXIF and text fail in as many ways as there are writers
        metadata = Metadata()
    at = data.find(_STORE)
    # Without a manifest store, a file may name an address in its XMP.
    if at < 0 and b"dcterms:provenance" not in data:
        return Provenance(metadata=metadata)
    # The store's own length; a larger one takes more memory than a child has, and ends it.
    if at > 0 and _MOST_STORE_BYTES < int.from_bytes(data[at - 12 : at - 8]) <= len(data):
        return Provenance(state="too_costly", metadata=metadata)
    try:
        return _credential(data, anchors).model_copy(update={"metadata": metadata})
    except Exception as error:
        state = _STATES.get(str(error).partition(":")[0], "unreadable")
        return Provenance(state=state, metadata=metadata)


def warm_up() -> None:
    """Load what a confined child cannot: files, and the page of ctypes's callbacks, which is executable."""
    read_provenance(b"\xff\xd8\xff\xd9" + _STORE, "")
    _context.cache_clear()  # a context is its process's own


@lru_cache(1)
def _context(anchors: str) -> c2pa.Context:
    verify = {"verify_trust": True, "remote_manifest_fetch": False, "ocsp_fetch": False}
    settings = {"verify": verify, "core": {"allowed_network_hosts": []}}
    trust = {"trust": {"trust_anchors": anchors}} if anchors else {}
    return c2pa.Context(c2pa.Settings.from_dict(settings | trust))


def _credential(data: bytes, anchors: str) -> Provenance:
    with c2pa.Reader(None, BytesIO(data), context=_context(anchors)) as reader:
        state, text = _STATES.get(reader.get_validation_state(), "unreadable"), reader.json()
    if len(text) > _MOST_REPORT_CHARS:
        return Provenance(state="too_costly")
    report = json.loads(text)
    manifests, active = report["manifests"], report["active_manifest"]
    manifest = manifests[active]
    signature, actions = manifest.get("signature_info") or {}, list(_actions(manifest))
    declares, agent = _declaration(manifests, active)
    generator = agent or next(iter(manifest.get("claim_generator_info") or ()), None)
    generator = generator.get("name") if isinstance(generator, dict) else generator
    return Provenance(
        state=state,
        declares=declares,
        signer=signature.get("common_name"),
        issuer=signature.get("issuer"),
        generator=generator or manifest.get("claim_generator"),
        time=signature.get("time"),
        actions=tuple(str(action["action"]).removeprefix("c2pa.") for action in actions[:_MOST_ENTRIES]),
        ingredients=tuple(
            str(ingredient.get("title") or "untitled")
            for ingredient in manifest.get("ingredients", ())[:_MOST_ANCESTORS]
            if _declaration(manifests, ingredient.get("active_manifest"))[0] == "generated"
        )[:_MOST_ENTRIES],
    )


def _actions(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for assertion in manifest.get("assertions", ()):
        if assertion["label"].startswith("c2pa.actions"):
            yield from assertion["data"]["actions"]


def _declaration(manifests: dict[str, Any], label: str | None) -> tuple[Declaration | None, Any]:
    """Return a manifest's declaration, or that of the first ancestor with one, and who made it."""
    for _ in range(_MOST_ANCESTORS):
        if (manifest := manifests.get(label or "")) is None:
            break
        agents = dict[Declaration, Any]()
        for action in _actions(manifest):
            if (declares := _declares(action.get("digitalSourceType"))) is not None:
                if declares == "generated" and action["action"] not in _ORIGINS:
                    declares = "edited_with_ai"
                agents.setdefault(declares, action.get("softwareAgent"))
        if agents:
            heaviest = min(agents, key=_BY_WEIGHT.index)
            return heaviest, agents[heaviest]
        parents = (i for i in manifest.get("ingredients", ()) if i.get("relationship") == "parentOf")
        parent: dict[str, Any] = next(parents, {})
        label = parent.get("active_manifest")
    return None, None


def _declares(source_type: object) -> Declaration | None:
    return _SOURCE_TYPES.get(str(source_type).rsplit("/", 1)[-1], "other") if source_type else None


def _metadata(data: bytes) -> Metadata:
    texts, exif = _texts(data)
    at = data.find(b"http://www.w3.org/1999/02/22-rdf-syntax-ns#")
    # Without XMP the first part is the file's last byte at most.
    named = (texts.get(name, "").encode() for name in ("XML:com.adobe.xmp", "udta"))
    parts = (data[at : at + _XMP_BYTES], *named, data[:_END_BYTES], data[-_END_BYTES:])
    declared = {_declares(match[1].decode()) for part in parts for match in _SOURCE_TYPE.finditer(part)}
    declared |= {kind for mark, kind in _MARKS.items() if any(mark in part for part in parts)}
    writers = (
        w for w, names, form in _WRITERS if any(re.search(form, texts[n]) for n in names & texts.keys())
    )
    generator = next(writers, None)
    declared |= {"generated"} if generator or any(map(_LABEL.search, parts)) else set()
    declares = next((kind for kind in _BY_WEIGHT if kind in declared), None)
    return Metadata(declares=declares, generator=generator, **exif)


def _texts(data: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Return a picture's text chunks and EXIF, or a film's tags, by name, each cut; and its camera's EXIF."""
    if demuxer(data):
        film = (part for box in boxes(data) if box.kind == b"moov" for part in boxes(data, *box[1:]))
        tags = (data[at : min(end, at + _TEXT_CHARS)] for kind, at, end in film if kind in (b"udta", b"meta"))
        return {"udta": _text(b"".join(tags))}, {}
    register_heif()
    try:
        with Image.open(BytesIO(data), formats=tuple(FORMATS)) as image:
            # A PNG would be decoded to look for EXIF behind its pixels.
            is_bare = image.format == "PNG" and not any("exif" in str(name) for name in image.info)
            exif = Image.Exif() if is_bare else image.getexif()
            named = {ExifTags.TAGS[tag]: exif[tag] for tag in (271, 272, 305) if tag in exif}
            named["UserComment"] = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment, b"")
            info = {str(name): value for name, value in image.info.items() if isinstance(value, str)}
    except Exception:
        return {}, {}
    texts = {name: _text(value) for name, value in (info | named).items() if isinstance(value, str | bytes)}
    return texts, {name.lower(): texts[name] for name in ("Make", "Model", "Software") if name in texts}


def _text(value: str | bytes) -> str:
    if isinstance(value, str):
        return value[:_TEXT_CHARS]
    value = value[: 2 * _TEXT_CHARS]
    if value.startswith(b"UNICODE\0"):
        order = "utf-16-le" if value[9:10] == b"\0" else "utf-16-be"
        return value[8:].decode(order, "replace")
    return value.removeprefix(b"ASCII\0\0\0").decode("utf-8", "replace")
