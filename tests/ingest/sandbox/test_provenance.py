"""A file's statements about its origin: read right, offline, and never the end of an item."""

import contextlib
import json
import os
import socket
import threading
import time
import zlib
from io import BytesIO
from pathlib import Path

import c2pa
import pytest
from credentials import CAPTURED, EDITED, IPTC, TRAINED, action, signed, signer
from media import encode, grey_clip, photo, png_chunk
from PIL import ExifTags, Image, PngImagePlugin

from ingest.records import CropPlan, MediaPlan, Metadata, Provenance
from ingest.sandbox import child
from ingest.sandbox.provenance import read_provenance
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from ingest.trust_anchors import TrustAnchors, TrustAnchorsError

FILES = Path(__file__).parents[4] / "shared" / "media" / "c2pa"
PLAN = MediaPlan(crops=CropPlan(patches=1, face_patches=0, frames=2))


@pytest.fixture(scope="module")
def decode():
    """Decodes in a sandbox that trusts the test's signer."""
    with Sandbox(IngestSettings(), lambda: signer().anchor) as sandbox:
        yield lambda data: sandbox.submit(data, PLAN).result(60)


def generated(data, kind="image/jpeg", **more):
    return signed(data, kind, action("created", TRAINED, softwareAgent="Model X"), **more)


# By the folder's manifest: file, state, declaration, how many actions, whether an ingredient is generated.
SHARED = [
    ("c2pa-rs__C_with_CAWG_data.jpg", "valid_untrusted", "captured", 1, False),
    ("c2pa-rs__boxhash.jpg", "valid_untrusted", None, 2, False),
    ("c2pa-rs__ocsp.jpg", "valid_untrusted", "edited_with_ai", 3, True),
    ("c2pa-rs__video1.mp4", "valid_untrusted", None, 1, False),
    *((f"c2pa-rs__{name}", "remote", None, 0, False) for name in ("cloud.jpg", "libpng-test_with_url.png")),
    *((f"c2pa-rs__{name}.jpg", "unreadable", None, 0, False) for name in ("no_alg", "prerelease")),
    *((f"c2pa-rs__sample1.{of}", "none", None, 0, False) for of in ("avif", "gif", "heif", "png", "webp")),
    *((f"testfiles__adobe-20220124-{name}.jpg", "none", None, 0, False) for name in "AI"),
    *(
        (f"c2pa-rs__{name}", "none", None, 0, False)
        for name in ("nested_moov_1000.mp4", "tiff_poc.tiff", "video1_no_manifest.mp4")
    ),
    *(
        (f"testfiles__adobe-20220124-{name}.jpg", "valid_untrusted", None, count, False)
        for name, count in {"C": 2, "CA": 2, "CACA": 2, "CAI": 4, "CI": 4}.items()
    ),
    *(
        (f"testfiles__adobe-20220124-{name}.jpg", "invalid", None, 2, False)
        for name in ("E-dat-CA", "E-sig-CA", "E-uri-CA", "XCA")
    ),
]


@pytest.mark.skipif(not FILES.exists(), reason="needs ../shared/media/c2pa")
@pytest.mark.parametrize(("name", "state", "declares", "actions", "of_generated"), SHARED)
def test_real_files_are_read_right(name, state, declares, actions, of_generated, decode):
    data = (FILES / name).read_bytes()
    provenance = read_provenance(data, "")
    found = (provenance.state, provenance.declares, len(provenance.actions), bool(provenance.ingredients))
    assert found == (state, declares, actions, of_generated)
    if "nested" not in name and "poc" not in name:  # no pictures
        assert decode(data).provenance == provenance


@pytest.mark.skipif(not FILES.exists(), reason="needs ../shared/media/c2pa")
def test_the_table_names_every_file():
    assert {name for name, *_ in SHARED} == {f.name for f in FILES.iterdir() if f.suffix != ".tsv"}


KINDS = {form: f"image/{form.lower()}" for form in ("JPEG", "PNG", "WEBP", "TIFF", "GIF")}


@pytest.mark.parametrize("form", [*KINDS, "mp4"])
def test_one_changed_byte_makes_a_credential_invalid(form, decode):
    media, kind = (grey_clip(), "video/mp4") if form == "mp4" else (photo(96, form), KINDS[form])
    good = generated(media, kind)
    facts = {"state": "valid_trusted", "declares": "generated", "generator": "Model X"}
    facts |= {"signer": "Test Signer", "issuer": "Test Makers", "actions": ("created",)}
    assert decode(good).provenance == Provenance(**facts)
    assert read_provenance(good, "").state == "valid_untrusted"
    assert read_provenance(good, signer("Another").anchor).state == "valid_untrusted"
    changed = bytearray(good)
    changed[good.index(media[len(media) // 2 :][:16])] ^= 1
    assert read_provenance(bytes(changed), signer().anchor).state == "invalid"


def test_a_credential_of_another_or_a_cropped_picture_is_invalid(decode):
    credential = generated(photo(96))[: -len(photo(96)) + 20]
    for other in (photo(112), encode(Image.open(BytesIO(photo(96))).crop((0, 0, 64, 64)), "JPEG")):
        assert decode(credential + other[20:]).provenance.state == "invalid"
    resaved = encode(Image.open(BytesIO(generated(photo(96)))), "JPEG")
    assert decode(resaved).provenance == Provenance()


@pytest.mark.slow
def test_a_credential_of_an_expired_certificate_is_invalid():
    short = signer("Short", 3 / 86_400)
    data = generated(photo(96), by=short)
    assert read_provenance(data, short.anchor).state == "valid_trusted"
    deadline = time.monotonic() + 30
    while read_provenance(data, short.anchor).state != "invalid":
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("actions", "declares"),
    [
        ([action("created", TRAINED)], "generated"),
        ([action("created", IPTC + "algorithmicMedia")], "generated"),
        ([action("created", CAPTURED), action("edited", EDITED)], "edited_with_ai"),
        ([action("created", CAPTURED), action("edited", TRAINED)], "edited_with_ai"),
        ([action("created", TRAINED), action("edited", EDITED)], "generated"),
        ([action("created", CAPTURED)], "captured"),
        ([action("created", IPTC + "compositeCapture")], "composite"),
        ([action("created", IPTC + "digitalCreation")], "other"),
        ([action("created", "http://c2pa.org/digitalsourcetype/empty", softwareAgent="Firefly")], "other"),
    ],
)
def test_an_action_with_a_source_type_declares(actions, declares):
    assert read_provenance(signed(photo(96), "image/jpeg", *actions), "").declares == declares


def test_an_edit_declares_as_its_parent_does():
    before = generated(photo(96))
    provenance = read_provenance(
        signed(before, "image/jpeg", action("cropped"), parent=before, generator="Editor"), signer().anchor
    )
    assert (provenance.state, provenance.declares) == ("valid_trusted", "generated")
    assert (provenance.ingredients, provenance.generator) == (("before.jpg",), "Model X")


RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
STORE = b"jumdc2pa\x00\x11\x00\x10\x80\x00\x00\xaa\x008\x9bq"
SEGMENT = b"\xff\xeb\0\x2eJP\0\x01\0\0\0\x01\xff\xff\xff\xffjumb\0\0\0\x1c" + STORE
XMP = f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{RDF}"><rdf:Description '
XMP += "{}/></rdf:RDF></x:xmpmeta>"


def remote(url):
    xmp = XMP.format(f'xmlns:dcterms="http://purl.org/dc/terms/" dcterms:provenance="{url}"')
    return encode(Image.open(BytesIO(photo(96))), "JPEG", xmp=xmp.encode())


def test_nothing_that_a_file_names_is_fetched(decode):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        data = remote(f"http://127.0.0.1:{listener.getsockname()[1]}/x.c2pa")
        assert read_provenance(data, "").state == decode(data).provenance.state == "remote"
        for url, state in {
            "http://169.254.169.254/latest/meta-data": "remote",
            "file:///etc/passwd": "none",
        }.items():
            assert decode(remote(url)).provenance.state == state
        revocable = signer("Revocable", ocsp=f"http://127.0.0.1:{listener.getsockname()[1]}/")
        asked = generated(photo(96), by=revocable)
        assert read_provenance(asked, revocable.anchor).state == "valid_trusted"
        with pytest.raises(TimeoutError):
            listener.accept()
        # The library as it comes does connect, and asks for revoked certificates where it may.
        listener.settimeout(30)
        for file, settings in {data: {}, asked: {"verify": {"ocsp_fetch": True}}}.items():
            reading = threading.Thread(target=_read_as_it_comes, args=(file, settings))
            reading.start()
            listener.accept()[0].close()
            reading.join(30)


def _read_as_it_comes(data, settings):
    with contextlib.suppress(c2pa.C2paError):
        c2pa.Reader("image/jpeg", BytesIO(data), context=c2pa.Context(c2pa.Settings.from_dict(settings)))


def _png(**texts):
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name.replace("_dash_", "-"), text)
    return encode(Image.new("RGB", (64, 64)), "PNG", pnginfo=info)


def _exif(tags):
    exif = Image.Exif()
    exif.update({tag: value for tag, value in tags.items() if tag != ExifTags.Base.UserComment})
    if comment := tags.get(ExifTags.Base.UserComment):
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = comment
    return encode(Image.new("RGB", (64, 64)), "JPEG", exif=exif)


def _xmp(attributes, form="JPEG"):
    return encode(Image.new("RGB", (64, 64)), form, xmp=XMP.format(attributes).encode())


STEPS = "a cat\nNegative prompt: dog\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1"
NODES = json.dumps({"3": {"inputs": {"seed": 5}, "class_type": "KSampler"}})
COMMENT = ExifTags.Base.UserComment
LABEL = '{"Label":"1","ContentProducer":"0011","ProduceID":"7"}'


def _xmp_film(attributes):
    """A film with XMP in a box of its own, behind which it goes on."""
    xmp = bytes.fromhex("be7acfcb97a942e89c71999491e3afac") + XMP.format(attributes).encode()
    boxes = {b"uuid": xmp, b"free": bytes(70_000)}
    return grey_clip() + b"".join((len(c) + 8).to_bytes(4) + kind + c for kind, c in boxes.items())


@pytest.mark.parametrize(
    ("data", "declares", "generator"),
    [
        (_png(parameters=STEPS), "generated", "Stable Diffusion"),
        (_exif({COMMENT: b"UNICODE\0" + STEPS.encode("utf-16-be")}), "generated", "Stable Diffusion"),
        (_exif({COMMENT: b"ASCII\0\0\0" + STEPS.encode()}), "generated", "Stable Diffusion"),
        (_png(prompt=NODES, workflow='{"nodes": []}'), "generated", "ComfyUI"),
        (_exif({271: "prompt:" + NODES}), "generated", "ComfyUI"),
        (_png(invokeai_metadata="{}"), "generated", "InvokeAI"),
        (_png(sd_dash_metadata="{}"), "generated", "InvokeAI"),
        (_png(Software="NovelAI", Comment='{"steps": 28}'), "generated", "NovelAI"),
        (_png(Description="Job ID: 00000000-0000-0000-0000-000000000000"), "generated", "Midjourney"),
        (_xmp(f'Iptc4xmpExt:DigitalSourceType="{TRAINED}"'), "generated", None),
        (_xmp(f'Iptc4xmpExt:DigitalSourceType="{EDITED}"', "WEBP"), "edited_with_ai", None),
        (_xmp(f"><Iptc4xmpExt:DigitalSourceType>{CAPTURED}</a><a"), "captured", None),
        (_xmp(f'><a:DigitalSourceType rdf:resource="{TRAINED}"'), "generated", None),
        (_xmp('photoshop:Credit="Edited with Google AI"'), "edited_with_ai", None),
        (photo(64) + b'SEFH{"genAIType":1}', "edited_with_ai", None),
        (_xmp_film(f'Iptc4xmpExt:DigitalSourceType="{TRAINED}"'), "generated", None),
        (grey_clip(comment=json.dumps({"prompt": NODES})), "generated", "ComfyUI"),
        (grey_clip("mov", comment=NODES), "generated", "ComfyUI"),
        (grey_clip(prompt=NODES), "generated", "ComfyUI"),
        (grey_clip(AIGC=LABEL), "generated", None),
        (_xmp("TC260:AIGC='" + LABEL.replace('"', "&quot;") + "'"), "generated", None),
        (grey_clip(AIGC=LABEL.replace("1", "2", 1)), None, None),
        (grey_clip(comment="steps: 5, nodes"), None, None),
        (_png(Comment="Steps to follow", Software="GIMP"), None, None),
        (_xmp('dc:description="no source"'), None, None),
        (photo(64), None, None),
    ],
)
def test_unsigned_metadata_declares(data, declares, generator, decode):
    metadata = decode(data).provenance.metadata
    assert (metadata.declares, metadata.generator) == (declares, generator)


def test_exif_names_a_camera(decode):
    data = _exif({271: "Canon", 272: "EOS R5", 305: "Firmware 1.8"})
    camera = Metadata(make="Canon", model="EOS R5", software="Firmware 1.8")
    assert decode(data).provenance.metadata == camera


def _with_chunk(kind, content):
    return photo(64, "PNG")[:33] + png_chunk(kind, content) + photo(64, "PNG")[33:]


TEN_MAKES = b"Exif\0\0II*\0\x08\0\0\0\x0a\0" + b"\x0f\x01\x02\0\x04\0\0\0Mak\0" * 10 + b"\0" * 4


@pytest.mark.parametrize(
    "data",
    [
        _with_chunk(b"tEXt", b"parameters\0" + b"x" * 8_000_000),
        _with_chunk(b"zTXt", b"parameters\0\0" + zlib.compress(b"x" * 900_000)),
        encode(Image.new("RGB", (64, 64)), "JPEG", exif=TEN_MAKES),
        encode(Image.new("RGB", (64, 64)), "JPEG", exif=b"Exif\0\0II*\0" + b"\xff" * 60_000),
        _xmp('><!DOCTYPE a [<!ENTITY b "&c;&c;"><!ENTITY c "&b;&b;">]>&b;<a'),
        photo(64) + RDF.encode() + b"<a " * 500_000 + b"DigitalSourceType" * 5000,
        photo(64) + STORE * 20_000,
        photo(64)[:2] + SEGMENT + photo(64)[2:],
    ],
    ids=range(8),
)
def test_hostile_metadata_costs_little_and_no_verdict(data, decode):
    _require_little(data, decode)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iTXt"])
def test_text_of_64_mib_costs_little_and_no_verdict(kind, decode):
    """It comes by dataref, for a record has at most 8 MiB; what inflates to it comes anyway."""
    text = b"x" * 2**26
    content = {b"tEXt": text, b"zTXt": b"\0" + zlib.compress(text), b"iTXt": bytes(4) + text}[kind]
    _require_little(_with_chunk(kind, b"parameters\0" + content), decode)


def _require_little(data, decode):
    began = time.process_time()
    provenance = read_provenance(data, "")
    assert time.process_time() - began < 1
    assert provenance.state in ("none", "unreadable")
    assert provenance.metadata.declares is None
    assert decode(data).provenance == provenance


def test_text_of_strangers_is_short_and_without_marks(decode):
    name, by = "\u202egnp.\x1b[31m\nAda\u200f" + "x" * 500, signer("\u202egnp.\x1b[31m\nAda\u200f")
    made = action("created", TRAINED, softwareAgent=name)
    provenance = decode(signed(photo(96), "image/jpeg", made, by=by, generator=name)).provenance
    assert provenance.signer == "gnp.[31mAda"
    assert provenance.generator == ("gnp.[31mAda" + "x" * 500)[:200]
    assert decode(_exif({271: "a\x07\x1b]0;b" * 100})).provenance.metadata.make == "a]0;b" * 40


def _grown(actions):
    """A signed PNG with other actions, CBOR; each box around them states its new length."""
    png = generated(photo(96, "PNG"), "image/png")
    at = png.index(b"caBX") + 4
    end = at + int.from_bytes(png[at - 8 : at - 4])

    def rebuild(boxes):
        if not boxes:
            return b""
        size, kind = int.from_bytes(boxes[:4]), boxes[4:8]
        content = rebuild(boxes[8:size]) if kind == b"jumb" else boxes[8:size]
        content = actions if content.startswith(b"\xa1gactions") else content
        return (len(content) + 8).to_bytes(4) + kind + content + rebuild(boxes[size:])

    return png[: at - 8] + png_chunk(b"caBX", rebuild(png[at:end])) + png[end + 4 :]


def _edits(count):
    return _grown(b"\xa1gactions\x9a" + count.to_bytes(4) + b"\xa1faction\x6bc2pa.edited" * count)


def _with_two_stores():
    one, other = (signed(photo(96, "PNG"), "image/png", action("created", of)) for of in (TRAINED, CAPTURED))
    return one[:33] + other[33 : 45 + int.from_bytes(other[33:37])] + one[33:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda: _edits(2), "invalid"),
        (lambda: _edits(1_000_000), "too_costly"),
        (
            lambda: _grown(b"\xa2gactions\x80ax\x7a" + (50_000_000).to_bytes(4) + b"x" * 50_000_000),
            "too_costly",
        ),
        (_with_two_stores, "unreadable"),
    ],
    ids=["two actions", "a million actions", "50 MB", "two manifests"],
)
def test_a_hostile_credential_has_one_state_and_the_pixels_decide(make, state, decode):
    """Of more than 8 MiB, it comes by dataref alone."""
    decoded = decode(make())
    assert (decoded.provenance.state, len(decoded.crops)) == (state, 1)


@pytest.mark.slow
def test_a_credential_in_a_hundred_layers_has_a_verdict(decode):
    data = generated(photo(64))
    for _ in range(100):
        data = signed(data, "image/jpeg", action("edited"), parent=data)
    assert decode(data).provenance.state in ("valid_trusted", "too_costly")


def test_a_credential_that_takes_long_is_too_costly_and_the_pixels_decide(monkeypatch, decode):
    data = generated(photo(96), more=30_000)
    assert decode(data).provenance.state == "valid_trusted"
    monkeypatch.setattr(child, "_MAX_PROVENANCE_S", 0.05)
    decoded = decode(data)
    assert (decoded.provenance.state, len(decoded.crops)) == ("too_costly", 1)
    assert decode(generated(photo(96))).provenance.state == "valid_trusted"


def test_trust_anchors_change_without_a_restart(tmp_path):
    path, data = tmp_path / "anchors.pem", generated(photo(96))
    another = "# a list\n" + signer("Another").anchor
    contents = {
        another: "valid_untrusted",
        signer().anchor: "valid_trusted",
        "no certificate": "valid_trusted",
    }
    path.write_text(another)
    with Sandbox(IngestSettings(), TrustAnchors(path)) as sandbox:
        for changed_ns, text in enumerate([*contents, another]):
            path.write_text(text)
            os.utime(path, ns=(changed_ns, changed_ns))
            assert sandbox.submit(data, PLAN).result(60).provenance.state == contents[text]


@pytest.mark.parametrize("content", [None, b"no certificate", b"-----BEGIN CERTIFICATE-----\nAA==\n"])
def test_a_trust_file_that_does_not_parse_is_one_line(content, tmp_path):
    path = tmp_path / "anchors.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrustAnchorsError) as refused:
        TrustAnchors(path)
    assert str(refused.value).startswith(f"the trust anchors {path} ")
    assert TrustAnchors(None)() == ""
