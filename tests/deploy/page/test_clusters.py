"""What an operator sees of clusters, and does with them by plain forms."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from deploy.server.pictures import residual
from memory.clusters.review import list_clusters
from memory.crops.crop_store import Views
from memory.labels import history, label
from memory.records import Declared
from memory.rows import counts, exemplars_of

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert(1)</script>\u202egpj.\x07"


def shelves(services):
    with services.memory.read() as connection:
        return {(shelf, family): count for (shelf, family), count in counts(connection).items()}


def test_an_empty_memory_says_what_will_come(page):
    shown = page.get("/page/clusters")
    assert (shown.status_code, "The queue is empty" in shown.text) == (200, True)


def test_each_cluster_is_listed_with_its_pictures(page, fill):
    fill("fmvr4m", 3)
    text = page.get("/page/clusters").text
    assert 'href="/page/clusters/fmvr4m"' in text
    assert text.count("/picture.png?view=pixels") == 3


def test_a_name_without_a_selection_goes_to_the_whole_cluster(page, fill, services):
    fill("fmvr4m", 3)
    done = page.submit("/page/clusters/fmvr4m", do="label", family=" blended ")
    assert done.history[0].status_code == 303
    assert sum(n for (shelf, family), n in shelves(services).items() if family == "blended") == 3


@pytest.mark.parametrize("same", ["keep", "relabel"])
def test_pictures_that_were_sent_and_imported_are_shown_and_resolved_each_or_all(page, fill, services, same):
    twins = fill("imported", 30, place=1)  # the same bytes as below
    label(services.memory, twins[2:29], "real", "ada")
    label(services.memory, twins[29:], "blended", "ada")
    ids = fill("arriving", 30)
    path = "/page/clusters/arriving"
    assert "Labelled already (28)" in page.get(path).text
    listed = page.get(f"{path}?order=same+bytes").text
    assert f'name="ids" value="{ids[2]}"' in listed
    assert f'name="ids" value="{ids[0]}"' not in listed
    refused = page.submit(path, do="label", family="gan")
    assert (refused.status_code, "called two classes" in refused.text) == (409, True)
    page.submit(path, do="keep", ids=ids[28:])
    page.submit(path, do="label", family="gan", same=same)
    with services.memory.read() as connection:
        found = [one.family for one in exemplars_of(connection, [ids[i] for i in (0, 5, 28, 29)])]
        theirs = [one.family for one in exemplars_of(connection, [twins[i] for i in (0, 5)])]
    assert found == ["gan", "real" if same == "keep" else "gan", "real", "blended"]
    assert theirs == [None, found[1]]


def test_a_name_goes_to_the_selected_tiles_alone_and_can_be_taken_back(page, fill, services):
    ids = fill("fmvr4m", 3)
    page.submit("/page/clusters/fmvr4m", do="label", family="blended", ids=ids[1:])
    assert shelves(services)[("unknown", None)] == 1
    (entry,) = history(services.memory)
    shown = page.submit("/page/clusters/fmvr4m", do="undo", number=str(entry.label))
    assert shown.status_code == 200
    assert shelves(services) == {("unknown", None): 3}


def test_what_is_refused_keeps_what_was_typed_and_selected(page, fill):
    ids = fill("fmvr4m", 3)
    shown = page.submit("/page/clusters/fmvr4m", do="label", family="Not A Family", ids=ids[:1])
    assert shown.status_code == 409
    assert 'role="alert"' in shown.text
    assert 'value="Not A Family"' in shown.text
    assert f'value="{ids[0]}" checked' in shown.text


def test_a_form_of_another_origin_does_nothing(page, fill, services):
    fill("fmvr4m", 2)
    form = {"do": "label", "family": "blended"}
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert page.post("/page/clusters/fmvr4m", data=form, headers={"Origin": origin}).status_code == 403
    assert page.post("/page/clusters/fmvr4m", data=form).status_code == 403  # without the page's token
    del page.headers["Origin"]
    assert page.post("/page/clusters/fmvr4m", data=form).status_code == 422
    assert shelves(services) == {("unknown", None): 2}


def test_pages_hold_every_member_once_in_each_order(page, fill):
    ids = fill("fmvr4m", 50)
    for order in ("typical", "farthest", "random"):
        seen = []
        for number in (1, 2, 3):
            text = page.get(f"/page/clusters/fmvr4m?order={order}&page={number}").text
            seen += [each for each in ids if f'name="ids" value="{each}"' in text]
        assert sorted(seen) == sorted(ids)


def test_what_a_producer_wrote_is_text_alone(page, fill):
    fill("fmvr4m", 2, source=HOSTILE)
    text = page.get("/page/clusters/fmvr4m").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text
    assert "\x07" not in text
    assert "<bdi" in text


@pytest.mark.parametrize("generator", ["Midjourney", HOSTILE, None])
def test_one_click_labels_the_items_of_a_cluster_that_declare_generation_and_the_others_stay(
    page, fill, services, generator
):
    ids = fill("fmvr4m", 5, declared=[Declared(declares="generated", generator=generator)] * 3)
    text = page.get("/page/clusters/fmvr4m").text
    assert "3 of 5 declare a generative model" in text
    assert (text.count("<script>alert"), text.count("\x07")) == (0, 0)
    (family,) = re.findall('id="declared-family" name="family" value="([^"]+)"', text)
    names = {"Midjourney": "midjourney", HOSTILE: "script-alert-1-script-gpj", None: "generated"}
    assert family == names[generator]
    (version,) = set(re.findall('name="version" value="([^"]+)"', text))
    page.submit("/page/clusters/fmvr4m", do="declared", family=family, version=version)
    with services.memory.read() as connection:
        assert [one.family for one in exemplars_of(connection, ids)] == [family] * 3 + [None] * 2
    assert 'id="declared"' not in page.get("/page/clusters/fmvr4m").text


def test_items_that_the_model_missed_and_the_file_declares_are_a_list_of_their_own(page, fill, services):
    assert "No such item waits" in page.get("/page/misses").text
    file = Declared(declares="generated", generator=HOSTILE, missed=True)
    ids = fill("fmvr4m", 4, source=HOSTILE, declared=[file, file])
    assert "2 items</a> missed by the model, declared by the file" in page.get("/page/clusters").text
    text = page.get("/page/misses").text
    assert sorted(re.findall('name="ids" value="([^"]+)"', text)) == ids[:2]
    assert ("&lt;script&gt;" in text, "<script>alert" in text, "\x07" in text) == (True, False, False)
    assert {item["id"] for item in page.get("/misses").json()} == set(ids[:2])
    refused = page.submit("/page/misses", ids=ids[:1], family="No Family")
    assert refused.status_code == 409
    assert ('value="No Family"' in refused.text, f'value="{ids[0]}" checked' in refused.text) == (True, True)
    assert page.submit("/page/misses", family="gan").status_code == 409  # nothing is selected
    left = page.submit("/page/misses", ids=ids[:1], family=" gan ")
    assert re.findall('name="ids" value="([^"]+)"', left.text) == ids[1:2]
    assert shelves(services)[("unknown", None)] == 3


def test_only_pngs_made_here_are_sent(page, fill, services):
    (name,) = fill("fmvr4m", 1)
    with services.memory.read() as connection:
        (item,) = exemplars_of(connection, [name])
    crop = services.crops.load(str(item.crops_digest))[0]
    sent = page.get(f"/exemplars/{name}/picture.png")
    assert sent.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(sent.content)) as image:
        assert np.array_equal(np.asarray(image), crop)
    assert page.get(f"/exemplars/{name}/picture.png?view=residual").status_code == 200
    assert page.get("/exemplars/nothing/picture.png").status_code == 404


def test_a_flat_crop_has_no_residual_and_a_speck_has_one():
    def drawn(crop):
        with Image.open(io.BytesIO(residual(Views(crop[None], None), 0))) as image:
            return np.asarray(image)

    flat = np.full((16, 16, 3), 90, np.uint8)
    assert (drawn(flat)[4:-4, 4:-4] == 128).all()
    speck = flat.copy()
    speck[8, 8] = 91
    assert len(np.unique(drawn(speck)[4:-4, 4:-4])) > 1


def test_what_is_split_off_is_a_cluster_that_can_be_merged_and_taken_back(page, fill):
    ids = fill("fmvr4m", 4)
    shown = page.submit("/page/clusters/fmvr4m", do="split", ids=ids[:2])
    assert shown.status_code == 200
    (made,) = set(re.findall(r"/page/clusters/(\w+)", page.get("/page/clusters").text)) - {"fmvr4m"}
    assert "Created by a manual edit (1)" in page.get(f"/page/clusters/{made}").text
    merged = page.submit("/page/clusters/fmvr4m", do="merge", other=made)
    assert "4 items" in merged.text
    name = merged.url.path.rpartition("/")[2]
    back = page.submit(f"/page/clusters/{name}", do="undo edit", number="2")
    assert back.status_code == 200
    assert set(re.findall(r"/page/clusters/(\w+)", page.get("/page/clusters").text)) == {"fmvr4m", made}


def test_a_cluster_stands_beside_the_known_that_it_is_nearest_to(page, fill, services):
    ids, known = fill("fmvr4m", 3), fill("hk2b9z", 4, place=1)
    assert "No labelled item to compare with" in page.get("/page/clusters/fmvr4m").text
    label(services.memory, known[:2], "blended", "ada")
    text = page.get("/page/clusters/fmvr4m").text
    near = text.partition('id="near"')[2].partition("</div>")[0]
    assert re.findall(r'alt="([^"]+)"', near) == [
        each["id"] for each in page.get("/clusters/fmvr4m/nearest").json()
    ]
    assert near.count("<b>blended</b>") == 2
    assert not any(each in near for each in ids)


def test_an_ignored_cluster_leaves_the_queue_and_can_be_brought_back(page, fill, services):
    fill("fmvr4m", 3)
    fill("hk2b9z", 2, place=1)
    gone = page.submit("/page/clusters/fmvr4m", do="ignore")
    assert gone.url.path == "/page/clusters"
    assert set(re.findall(r"/page/clusters/(\w+)", gone.text)) == {"hk2b9z"}
    assert shelves(services) == {("ignored", None): 3, ("unknown", None): 2}
    assert "ignore" in page.get("/page/record?action=label").text
    shown = page.get("/page/clusters/hk2b9z").text
    assert "<b>ignore</b> 3" in shown
    number = re.search('name="number" value="([0-9]+)"', shown)
    assert number is not None
    page.submit("/page/clusters/hk2b9z", do="undo", number=number[1])
    assert shelves(services) == {("unknown", None): 5}


def test_undo_takes_back_what_was_done_last_be_it_a_label_or_an_edit(page, fill, services):
    ids = fill("fmvr4m", 6)

    def undone():
        form = re.search(
            'value="([0-9]+)"><button class="small" name="do" value="([^"]+)" data-key="undo"',
            page.get("/page/clusters/fmvr4m").text,
        )
        return "" if form is None else " ".join(form.groups()[::-1])

    page.submit("/page/clusters/fmvr4m", do="label", family="blended", ids=ids[:1], seen=ids)
    assert undone() == "undo 1"
    page.submit("/page/clusters/fmvr4m", do="split", ids=ids[1:3])
    assert undone() == "undo edit 1"
    back = page.submit("/page/clusters/fmvr4m", do="undo edit", number="1")
    assert back.url.path == "/page/clusters/fmvr4m"
    assert undone() == "undo 1"
    page.submit("/page/clusters/fmvr4m", do="undo", number="1")
    assert undone() == ""
    assert len(list_clusters(services.memory)) == 1


@pytest.mark.parametrize("path", ["/", "/page/clusters", "/page/clusters/none", "/status"])
def test_every_answer_is_sent_under_the_policy(page, path):
    policy = page.get(path).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy


def test_an_unknown_cluster_is_one_line_with_a_way_on(page):
    shown = page.get("/page/clusters/none")
    assert shown.status_code == 404
    assert "there is no cluster none" in shown.text
