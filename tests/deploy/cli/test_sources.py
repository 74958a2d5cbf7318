"""`forgewatch memory`, against a real server whose memory has nothing of a source yet."""


def test_a_source_is_blocked_before_it_comes_listed_and_let_in_again(answered, services):
    assert "nothing of it is held" in answered.ok("memory", "purge", "--source", "calm")
    assert "--yes is needed" in answered.fails("memory", "purge", "--source", "cam", "--block", code=2)
    said = answered.ok("memory", "purge", "--source", "cam", "--block", "--yes", "--as", "ada")
    assert "0 items of 'cam' were purged, and it is blocked" in said
    assert answered.json("memory", "blocked")[0]["actor"] == "ada"
    answered.ok("memory", "unblock", "--source", "cam")
    assert answered.json("memory", "blocked") == []
    assert "is not blocked" in answered.fails("memory", "unblock", "--source", "cam")
