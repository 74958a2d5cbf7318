"""How one cluster is looked at: in pages, by likeness, beside what is known; and that the view stays."""

import re
from threading import Event

from memory.clusters.review import list_clusters
from memory.index.index import Index


def tiles(text):
    return re.findall('name="ids" value="([^"]+)"', text)


def checked(text):
    return re.findall('name="ids" value="([^"]+)" checked', text)


def version(text):
    (held,) = set(re.findall('name="version" value="([^"]+)"', text))
    return str(held)


def test_what_is_like_five_marked_comes_next_and_the_first_are_split_off(page, fill, services):
    ids = fill("fmvr4m", 30)
    shown = page.submit("/page/clusters/fmvr4m", do="alike", ids=ids[7:12], seen=ids[:24])
    assert shown.status_code == 200
    assert tiles(shown.text)[:5] == ids[7:12]
    assert checked(shown.text) == ids[7:12]
    second = page.get(f"{shown.url}&page=2")
    ranked = [*tiles(shown.text), *tiles(second.text)]
    assert sorted(ranked) == sorted(ids)
    api = page.get("/clusters/fmvr4m/alike", params={"to": ids[7:12], "limit": 30}).json()
    assert [member["id"] for member in api["members"]] == ranked
    # One more is marked on the second page, and one of the first five is no more.
    more = {"order": "alike", "like": ids[7:12], "do": "alike"}
    again = page.submit(
        "/page/clusters/fmvr4m", ids=[*ids[7:11], ranked[24]], seen=[*ranked[:1], ids[11]], **more
    )
    assert set(checked(again.text)) == {*ids[7:11], ranked[24]}
    page.submit("/page/clusters/fmvr4m", do="split first", first="9", order="alike", like=ids[7:12])
    made, rest = list_clusters(services.memory)
    assert (set(made.members), set(rest.members)) == (set(ranked[:9]), set(ranked[9:]))


def test_whoever_marked_what_another_labelled_meanwhile_is_told_so(page, fill):
    ids = fill("fmvr4m", 5)
    look = {"order": "alike", "like": ids[:2], "version": version(page.get("/page/clusters/fmvr4m").text)}
    page.submit("/page/clusters/fmvr4m", do="label", family="blended", ids=ids[:2])
    late = page.submit("/page/clusters/fmvr4m", do="split", ids=ids[2:3], **look)
    assert late.status_code == 409
    assert "called 2 of its items blended" in late.text
    assert tiles(late.text) == ids[2:]


def test_nothing_is_like_no_marks(page, fill):
    fill("fmvr4m", 3)
    refused = page.submit("/page/clusters/fmvr4m", do="alike")
    assert refused.status_code == 409
    assert "five are enough" in refused.text
    assert page.get("/clusters/fmvr4m/alike?to=elsewhere").status_code == 409


def test_an_index_that_is_being_read_keeps_no_cluster_from_being_looked_at(page, fill, monkeypatch):
    ids = fill("fmvr4m", 3)
    wait, opened = Event(), Index.open

    def slowly(*arguments):
        wait.wait()
        return opened(*arguments)

    monkeypatch.setattr("memory.index.shared_index._PATIENCE_S", 0.01)
    monkeypatch.setattr("memory.index.shared_index.Index.open", slowly)
    shown = page.get("/page/clusters/fmvr4m")
    assert (shown.status_code, "The index is loading" in shown.text) == (200, True)
    assert page.get("/clusters/fmvr4m/nearest").status_code == 503
    refused = page.get(f"/page/clusters/fmvr4m?order=alike&like={ids[0]}")
    assert (refused.status_code, "try again in some seconds" in refused.text) == (503, True)
    wait.set()


def test_after_an_act_the_view_is_where_it_was(page, fill):
    ids = fill("fmvr4m", 60)
    look = {"order": "farthest", "view": "residual", "page": "3"}
    shown = page.submit("/page/clusters/fmvr4m", do="label", family="blended", ids=ids[:2], **look)
    assert shown.url.query.decode() == "order=farthest&view=residual&page=3"
    # Of three pages two are left.
    shown = page.submit("/page/clusters/fmvr4m", do="label", family="blended", ids=ids[2:20], **look)
    assert len(tiles(shown.text)) == 16


def test_whoever_saw_another_state_is_told_who_changed_it(page, fill):
    ids = fill("fmvr4m", 4)
    seen = version(page.get("/page/clusters/fmvr4m").text)
    page.submit("/page/clusters/fmvr4m", do="label", family="blended", ids=ids[:1])
    late = page.submit("/page/clusters/fmvr4m", do="label", family="gan", version=seen)
    assert late.status_code == 409
    assert "called 1 of its items blended" in late.text
    assert 'value="gan"' in late.text
