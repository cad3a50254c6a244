"""The pictures: what they say in words, from which artifacts, in which colours; and what they cannot show."""

import copy
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from artifacts import results
from timelines import made_up

from flashcore_numba import cli
from flashcore_numba.core.shapes import Shape
from flashcore_numba.records import artifact, ring_timeline
from flashcore_numba.records.amounts import short_us
from flashcore_numba.report import pictures
from flashcore_numba.report.pictures import lengths, records, share, style

SVG = "{http://www.w3.org/2000/svg}"
CEILINGS = {
    "fp32_tflops": 60.0,
    "tensor_tflops": 800.0,
    "exp_gops": 4000.0,
    "l1_gbs": 33000.0,
    "l2_gbs": 7000.0,
    "dram_gbs": 4000.0,
    "launch_us": 0.5,
}


@pytest.fixture
def kept(tmp_path):
    """`kept(artifact, ...)` saves each under a name of its own and returns (file, artifact) pairs."""

    def keep(*made):
        pairs = [(tmp_path / f"artifact-{k}.json", each) for k, each in enumerate(made)]
        for path, each in pairs:
            artifact.save(each, path)
        return pairs

    return keep


@pytest.fixture
def longer(fake):
    """An artifact of several lengths, labelled; times grow with the square of the length."""

    def make(*seqs, label="lengths", causal=False):
        made = [fake(shape=Shape(1, 8, seq, 64)) for seq in seqs]
        for seq, each in zip(seqs, made, strict=True):
            shape = each["shapes"][0]
            shape["causal"] = causal
            for entry in shape["entries"]:
                entry["gpu_us"] = {
                    name: value * (seq / 512) ** 2 if isinstance(value, float) else value
                    for name, value in entry["gpu_us"].items()
                }
            artifact.derive(shape)
        return made[0] | {"label": label, "shapes": [each["shapes"][0] for each in made]}

    return make


@pytest.mark.long
def test_every_picture_of_a_full_record(fake, longer, kept, tmp_path):
    whole = fake(ceilings=CEILINGS)
    pairs = kept(whole, longer(128, 256, 512, 1024), longer(512, 1024, 2048, causal=True))
    gradients = results("1x8x512x64", {"backward/wgmma": 20.0, "FA4": 16.0}, flops=10 * 8 * 512 * 512 * 64)
    backward = (tmp_path / "backward.json", fake(operation="backward", shapes=[gradients]))
    artifact.layout.save(backward[1], backward[0], "entries")
    rings = [(tmp_path / f"ring-{back}.json", made_up(backward=back)) for back in (False, True)]
    for path, each in rings:
        ring_timeline.save(each, path)
    found, lacking = pictures.drawable([*pairs, backward], rings)
    assert [picture.name for picture in found] == list(pictures.NAMES)
    assert lacking == {}
    by_name = {picture.name: picture for picture in found}
    for name in ("ladder", "roofline", "time-budget"):
        assert by_name[name].sources == (pairs[0][0],)
    assert by_name["lengths"].sources == (pairs[1][0],)
    assert by_name["share"].sources == tuple(path for path, _ in pairs)
    assert by_name["backward"].sources == backward[:1]
    for picture in found:
        files = picture.draw(tmp_path / "out")
        assert [path.name for path in files] == [f"{picture.name}.svg", f"{picture.name}-dark.svg"]
        for path, theme in zip(files, style.THEMES, strict=True):
            assert style.written(path)["Description"] == picture.alt
            _is_drawn(path, theme)
        assert picture.stale(tmp_path / "out") == []


def _is_drawn(path, theme):
    """Background, ink and muted text of the theme are there, in a picture of the right width; no text needs a
    font, and nothing says when or by what it was drawn."""
    picture = ElementTree.parse(path).getroot()
    assert picture.get("width") == f"{72 * style.WIDTH:g}pt"
    _, _, width, height = picture.get("viewBox").split()
    paper = next(element for element in picture.iter(f"{SVG}path") if element.get("style"))
    assert paper.get("style") == f"fill: {theme.background}"
    assert paper.get("d").split() == f"M 0 {height} L {width} {height} L {width} 0 L 0 0 z".split()
    assert painted(path, theme.ink) > 10
    assert painted(path, theme.muted) >= 2
    names = {element.tag.partition("}")[2] for element in picture.iter()}
    assert "use" in names and not names & {"text", "image", "date", "creator"}


def painted(path, colour):
    """How many lines, shapes and texts have the colour."""
    return sum(colour in element.get("style", "") for element in ElementTree.parse(path).iter())


def rgb(colour):
    return [int(colour[k : k + 2], 16) for k in (1, 3, 5)]


@pytest.mark.long
def test_the_same_artifact_gives_the_same_bytes(fake, kept, tmp_path):
    pairs = kept(fake())
    ladder = pictures.drawable(pairs)[0][0]
    first, second = ladder.draw(tmp_path / "a"), ladder.draw(tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.long
def test_another_artifact_makes_a_picture_stale(fake, kept, tmp_path):
    pairs = kept(fake())
    ladder = pictures.drawable(pairs)[0][0]
    assert all("missing" in sentence for sentence in ladder.stale(tmp_path))
    _, dark = ladder.draw(tmp_path)
    assert ladder.stale(tmp_path) == []
    dark.write_text("no picture")
    (sentence,) = ladder.stale(tmp_path)
    assert "ladder-dark.svg: the picture was not drawn from artifact-0.json" in sentence
    pairs[0][0].write_text(pairs[0][0].read_text().replace("Imaginary", "Changed"))
    assert len(ladder.stale(tmp_path)) == 2


def test_other_numbers_from_the_same_artifact_make_it_stale(fake, kept, tmp_path):
    """A formula may change what a picture shows while the artifact stays."""
    picture = pictures.drawable(kept(fake()))[0][0]
    picture.draw(tmp_path)
    changed = style.Picture(picture.name, picture.alt + " More.", picture.sources, picture.paint)
    assert [s for s in changed.stale(tmp_path) if "the picture shows" in s and "More." in s]


def test_alternative_texts_name_the_numbers(fake, longer, kept):
    whole = fake(ceilings=CEILINGS)
    several = longer(128, 256, 512)
    found, _ = pictures.drawable(kept(whole, several))
    text = {picture.name: picture.alt for picture in found}
    (shape,) = whole["shapes"]
    for entry in shape["entries"]:
        us = short_us(entry["gpu_us"]["p50"])
        shown = entry["default"] and entry["label"] != "SDPA math"  # variants and other peers have no room
        for name in ("ladder", "lengths"):
            assert (entry["label"] in text[name]) == shown
        if shown:
            assert f"{entry['label']} {us}" in text["ladder"]
            times = [
                e["gpu_us"]["p50"]
                for s in several["shapes"]
                for e in s["entries"]
                if e["label"] == entry["label"]
            ]
            assert f"{entry['label']} {', '.join(map(short_us, times))}" in text["lengths"]
        if entry["default"] and entry["kind"] == "stage":
            assert f"{entry['label']} measured {us}" in text["time-budget"]
            tflops = records.problem(shape).flops / entry["gpu_us"]["p50"] / 1e6
            assert f"{entry['label']} {short_us(tflops)} at" in text["roofline"]
    assert "tensor cores 800 TFLOP/s" in text["roofline"]
    assert "L2 7.0 TB/s" in text["roofline"]
    assert "1x8x512x64: stage 06 20 % of SDPA flash" in text["share"]
    for alt in text.values():
        assert "Imaginary GPU, 2001-02-03, commit 0123456789" in alt


def test_what_is_missing_is_said(fake, longer, kept):
    found, lacking = pictures.drawable([])
    assert found == []
    assert set(lacking) == set(pictures.NAMES)
    found, lacking = pictures.drawable(kept(fake(shape=Shape(1, 1, 64, 64))))
    assert [picture.name for picture in found] == ["ladder", "share"]
    assert "measured ceilings" in lacking["roofline"]
    assert "3 lengths" in lacking["lengths"]


@pytest.mark.long
def test_a_record_without_peers_or_with_wrong_outputs(fake, kept):
    made = fake(ceilings=CEILINGS)
    (shape,) = made["shapes"]
    shape["entries"] = [entry for entry in shape["entries"] if entry["kind"] == "stage"]
    shape["entries"][0]["error"] |= {
        "right": False,
        "max": None,
        "mean": None,
        "relative": None,
        "margin": None,
    }
    artifact.derive(shape)
    found, lacking = pictures.drawable(kept(made))
    assert set(lacking) == {"lengths", "share", "backward", *pictures.TIMELINES}
    for picture in found:
        picture.paint(style.LIGHT)
    text = {picture.name: picture.alt for picture in found}
    assert "01 scalar WRONG" in text["ladder"]
    assert not any("01 scalar" in text[name] for name in ("roofline", "time-budget"))


@pytest.mark.long
def test_ceilings_that_were_not_measured_are_left_out(fake, kept):
    some = dict.fromkeys(CEILINGS) | {"l2_gbs": 7000.0}
    found, _ = pictures.drawable(kept(fake(ceilings=some)))
    roofline = next(picture for picture in found if picture.name == "roofline")
    assert "Ceilings: L2 7.0 TB/s." in roofline.alt
    roofline.paint(style.LIGHT)


def another_gpu(made, name, factor):
    made = copy.deepcopy(made)
    made["gpu"]["name"] = name
    for shape in made["shapes"]:
        for entry in shape["entries"]:
            entry["gpu_us"] = {
                key: value * factor if isinstance(value, float) else value
                for key, value in entry["gpu_us"].items()
            }
        artifact.derive(shape)
    return made


@pytest.mark.long
def test_a_new_gpu_stands_beside_the_recorded_one(fake, kept, tmp_path):
    own, other, causal = kept(
        another_gpu(fake(date="2020-01-01T00:00:00Z"), "Another GPU", 3.0), fake(), fake()
    )
    causal[1]["shapes"][0]["causal"] = True
    picture = pictures.ladder_beside(own, [causal, other])
    assert picture.sources == (own[0], other[0])
    assert "on Another GPU, 2020-01-01" in picture.alt
    assert "on Imaginary GPU, 2001-02-03" in picture.alt
    assert picture.alt.index("Another") < picture.alt.index("Imaginary")
    assert "01 scalar 6600" in picture.alt
    light, _ = picture.draw(tmp_path)
    for colour in style.LIGHT.series[:2]:
        assert painted(light, colour) >= len(own[1]["shapes"][0]["entries"])


def test_throttled_times_are_marked(fake, kept):
    made = fake()
    made["shapes"][0]["entries"][1]["throttled"] = ["power limit"]
    (ladder, *_), _ = pictures.drawable(kept(made))
    assert "05 online_softmax 138 throttled, 06 register_tiles 55.0, " in ladder.alt
    texts = [text.get_text() for text in ladder.paint(style.DARK).axes[0].texts]
    assert [text for text in texts if "throttled" in text] == ["138 µs throttled"]


def test_the_run_itself_is_not_set_beside_itself(fake, kept):
    (own,) = kept(fake())
    assert pictures.ladder_beside(own, [own]).sources == (own[0],)


def test_a_labelled_run_gives_way_to_the_ladder_of_its_gpu(fake, kept):
    whole, labelled = kept(fake(), fake(label="lengths"))
    for pair in ([whole, labelled], [whole]):
        assert [record for record, _ in records.same_shape(pair, "1x8x512x64", False)] == [whole]
    assert [record for record, _ in records.same_shape([labelled], "1x8x512x64", False)] == [labelled]


@pytest.mark.parametrize("theme", style.THEMES, ids=["light", "dark"])
def test_colours_stand_out(theme):
    """WCAG 2.1: 4.5 to 1 for text, 3 to 1 for graphics; series and kinds also differ in lightness or hue."""
    for text in (theme.ink, theme.muted):
        assert style.contrast(text, theme.background) >= 4.5
    for mark in (theme.fp32, theme.tensor, theme.peer, *theme.series):
        assert style.contrast(mark, theme.background) >= 3
    for fill in shades(theme):
        assert max(style.contrast(text, fill) for text in (theme.ink, theme.background)) >= 3.9


def shades(theme):
    """Colours from end to end of the ramp."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ramp = LinearSegmentedColormap.from_list("share", theme.ramp)
    return [theme.card, *(to_hex(ramp(part)) for part in np.linspace(0, 1, 33))]


def test_contrast_is_wcags():
    assert style.contrast("#ffffff", "#000000") == pytest.approx(21)
    assert style.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert style.contrast("#336699", "#336699") == 1


def simulated(colour, kind):
    """A colour as people without red, green or blue cones see it: Machado, Oliveira and Fernandes 2009."""
    matrix = {
        "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    }[kind]
    return np.clip(np.array(matrix) @ rgb(colour), 0, 255)


@pytest.mark.parametrize("theme", style.THEMES, ids=["light", "dark"])
@pytest.mark.parametrize("kind", ["protanopia", "deuteranopia", "tritanopia"])
def test_colours_differ_with_any_colour_vision(theme, kind):
    for group in ((theme.fp32, theme.tensor, theme.peer), theme.series[:3]):
        for one, other in combinations(group, 2):
            assert np.linalg.norm(simulated(one, kind) - simulated(other, kind)) > 40


def test_spread_keeps_order_and_distance(rng):
    for _ in range(50):
        places = list(rng.uniform(0, 20, size=rng.integers(1, 12)))
        moved = style.spread(places, 1.5)
        order = np.argsort(places, kind="stable")
        assert np.all(np.diff(np.array(moved)[order]) >= 1.5 - 1e-9)
        assert sum(moved) == pytest.approx(sum(places))
    assert style.spread([0.0, 5.0, 9.0], 1.5) == [0.0, 5.0, 9.0]


def test_labels_cover_neither_points_nor_each_other(rng):
    figure = style.new_figure(6)
    axes = figure.subplots()
    points = rng.uniform(size=(15, 2))
    axes.plot(*points.T, "o")
    labels = [style.Label(x, y, f"label {k}", "#000000") for k, (x, y) in enumerate(points)]
    style.name_points(axes, labels, style.LIGHT)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(labels)
    # Annotations include their lines in the extent, so the text alone is asked for.
    from matplotlib.text import Text

    boxes = [Text.get_window_extent(text) for text in axes.texts]
    for one, other in combinations(boxes, 2):
        assert not (one.shrunk(0.9, 0.8).overlaps(other.shrunk(0.9, 0.8)))
    for point in axes.transData.transform(points):
        assert not any(box.contains(*point) for box in boxes)


def test_problems_of_ragged_and_grouped_shapes():
    p = records.problem({"shape": "2x8/2x128/512x64", "causal": True, "scale": 0.5})
    assert (p.batch, p.heads, p.kv_heads, p.seq_q, p.seq_k, p.head_dim) == (2, 8, 2, 128, 512, 64)
    assert p.shape_label == "2x8/2x128/512x64"
    assert p.causal


def with_variant(fake, name, us):
    """An artifact in which stage 06 also ran as `name`."""
    made = fake()
    (shape,) = made["shapes"]
    plain = next(entry for entry in shape["entries"] if entry["label"] == "06 register_tiles")
    other = copy.deepcopy(plain) | {"label": f"06 {name}", "variant": name, "default": False}
    factor = us / plain["gpu_us"]["p50"]
    other["gpu_us"] = {
        key: value * factor if isinstance(value, float) else value for key, value in plain["gpu_us"].items()
    }
    shape["entries"].append(other)
    artifact.derive(shape)
    return made


def test_the_ladder_has_a_ring_for_overlapped_launches(fake, kept):
    """Its dot is the stage as the peers are launched."""
    dot, ring = 55.0, 44.0
    (ladder, *_), _ = pictures.drawable(kept(with_variant(fake, "overlapped", ring)))
    assert f"06 register_tiles {short_us(dot)}, " in ladder.alt
    assert f"stage 6 with overlapped launches {short_us(ring)}." in ladder.alt
    axes = ladder.paint(style.LIGHT).axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert f"{short_us(dot)} µs   ring: {short_us(ring)} µs where launches overlap" in texts
    rings = [line for line in axes.lines if line.get_markerfacecolor() == style.LIGHT.background]
    assert [line.get_xdata()[0] for line in rings] == [pytest.approx(ring)]


def test_other_variants_are_not_in_the_ladder(fake, kept):
    (ladder, *_), _ = pictures.drawable(kept(with_variant(fake, "in_order", 40.0)))
    assert "in_order" not in ladder.alt and "40" not in ladder.alt
    assert (
        "from 2200 to 55.0 µs; the fastest library takes 11.0"
        in ladder.paint(style.LIGHT).texts[0].get_text()
    )


@pytest.mark.long
def test_a_roof_begins_where_the_bandwidth_allows_it(fake, kept):
    """No line of the roofline lies above the steepest slope, or beyond the highest roof."""
    found, _ = pictures.drawable(kept(fake(ceilings=CEILINGS)))
    figure = next(p for p in found if p.name == "roofline").paint(style.LIGHT)
    for axes, gbs in zip(figure.axes, (CEILINGS["l2_gbs"], CEILINGS["l1_gbs"]), strict=True):
        lines = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) == 2]
        assert len(lines) >= 5
        for (x, y), (_, end) in lines:
            assert y <= gbs * x / 1e3 * 1.0001
            assert max(y, end) <= 1024.0 * 1.0001, "4000 x 10^9 exponentials, each with 4 x 64 operations"
    words = " ".join(text.get_text() for text in figure.texts)
    assert "One exponential goes with 4 x 64 operations" in words and "allow 1,024 TFLOP/s" in words


def test_share_shows_the_shapes_that_matter(fake, kept, longer):
    several = longer(256, 512, 1024)
    assert "at 2 shapes" in share.picture(kept(several)).alt
    assert "at 1 shapes" in share.picture(kept(fake(shape=Shape(1, 1, 64, 64)))).alt, "or all, where none is"


def test_shares_are_short():
    assert [share.percentage(x) for x in (0.00469, 0.0273, 0.31, 1.066)] == ["0.47", "2.7", "31", "107"]


def test_the_longest_family_is_drawn(longer, kept):
    few, many = kept(longer(128, 256, 512, label="few"), longer(128, 256, 512, 1024, label="many"))
    assert lengths.picture([few, many]).sources == (many[0],)


@pytest.mark.long
def test_the_command_draws_and_says_what_it_lacks(fake, kept, tmp_path, capsys):
    ((path, _),) = kept(fake())
    assert cli.main(["pictures", str(path), "--save", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert f"wrote {tmp_path / 'out' / 'ladder.svg'} and " in out
    assert "not drawn: lengths: no artifact has 3 lengths" in out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        f"{name}{theme.suffix}.svg" for name in ("ladder", "share") for theme in style.THEMES
    )


def test_the_command_names_a_damaged_file(tmp_path, capsys):
    path = tmp_path / "gpu.json"
    path.write_text("{}")
    assert cli.main(["pictures", str(path), "--save", str(tmp_path / "out")]) == 2
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_foreign_pictures_say_nothing(tmp_path):
    assert style.written(tmp_path / "none.svg") == {}
    (tmp_path / "text.svg").write_text("not a picture")
    assert style.written(tmp_path / "text.svg") == {}


@pytest.mark.long
def test_a_curve_that_ends_early_is_named_there(longer, kept):
    made = longer(128, 256, 512, 1024)
    for shape in made["shapes"][2:]:
        shape["entries"] = [entry for entry in shape["entries"] if entry["stage"] != 1]
        artifact.derive(shape)
    picture = lengths.picture(kept(made))
    us = [shape["entries"][0]["gpu_us"]["p50"] for shape in made["shapes"][:2]]
    assert f"01 scalar {', '.join(map(short_us, us))} (from S = 128 to 256)" in picture.alt
    left = picture.paint(style.LIGHT).axes[0]
    ends = {text.get_text(): text.xy for text in left.texts if hasattr(text, "xy") and text.get_alpha() != 0}
    assert {name: x for name, (x, _) in ends.items()} == {
        "01 scalar": 256,
        "05 online_softmax": 1024,
        "06 register_tiles": 1024,
        "SDPA flash": 1024,
    }
