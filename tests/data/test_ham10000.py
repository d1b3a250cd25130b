"""HAM10000 as Harvard's Dataverse publishes it: a table and two archives of JPEG files."""

import csv
import dataclasses
import io
import zipfile

import numpy as np
import pytest
from PIL import Image
from test_fetch import Mirror

from capslib import data
from capslib.data.readers import BLOCK, shrink

TABLE, ONE, TWO = (
    "HAM10000_metadata.csv",
    "HAM10000_images_part_1.zip",
    "HAM10000_images_part_2.zip",
)
SIZE = (4 * BLOCK, 3 * BLOCK)
KINDS = ["nv", "akiec", "bcc", "bkl", "df", "mel", "vasc", "nv"]


def picture(k, size=SIZE, mode="RGB", form="JPEG"):
    pixels = np.random.default_rng(k).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file := io.BytesIO(), form)
    return file.getvalue()


def zipped(members):
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def table(names):
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(
        ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", "dataset"]
    )
    writer.writerows(
        [f"HAM_{9 - k // 2}", name, KINDS[k], "histo", "", "", "", ""]
        for k, name in enumerate(names)
    )
    return file.getvalue().encode()


NAMES = [f"ISIC_{k:07}" for k in (5, 3, 1, 7, 0, 2, 6, 4)]
PICTURES = {name: picture(k) for k, name in enumerate(NAMES)}
HALVES = [{f"{name}.jpg": PICTURES[name] for name in half} for half in (NAMES[:3], NAMES[3:])]


@pytest.fixture
def tiny_ham(publish):
    """Eight pictures of 24 × 18 pixels, two of each lesion; one archive has a folder, as those of some mirrors do."""
    files = {
        TABLE: table(NAMES),
        ONE: zipped(HALVES[0]),
        TWO: zipped(
            {f"part_2/{k}": v for k, v in HALVES[1].items()}
            | {"__MACOSX/._ISIC_0000001.jpg": b"x"}
        ),
    }
    return publish("ham10000", {"all": (8, 3, 3, 4)}, {}, files)


def test_rows_are_in_the_order_of_the_names(tiny_ham, tmp_path):
    tiny_ham.put(tmp_path / "ham10000")
    found = data.load("ham10000", "all", data_dir=tmp_path)
    order = sorted(range(8), key=NAMES.__getitem__)
    assert [found.classes[label] for label in found.labels] == [KINDS[k] for k in order]
    same = found["lesion"][:, None] == found["lesion"]
    assert np.array_equal(same, [[a // 2 == b // 2 for b in order] for a in order])
    assert found["lesion"].max() == 3
    for image, k in zip(found.images, order, strict=True):
        assert np.array_equal(
            image,
            shrink(np.asarray(Image.open(io.BytesIO(PICTURES[NAMES[k]])))).transpose(2, 0, 1),
        )
    assert (found.fingerprint.complete, found.fingerprint.deviations) == (True, ())


def test_a_file_is_fetched_from_its_own_address(tiny_ham, tmp_path, monkeypatch):
    mirror = Mirror(
        {tiny_ham.spec.paths[name]: content for name, content in tiny_ham.files.items()}
    )
    monkeypatch.setitem(
        data.SETS, "ham10000", dataclasses.replace(tiny_ham.spec, mirrors=(mirror.address,))
    )
    try:
        data.fetch("ham10000", tmp_path)
    finally:
        mirror.server.shutdown()
        mirror.server.server_close()
    assert mirror.asked == ["4338392?format=original", "3172585", "3172584"]
    assert data.verify("ham10000", tmp_path) == []


def test_an_image_is_shrunk_as_the_released_code_does_it():
    """By what scikit-image's ``resize`` calls, which picks the places itself: the middle of each block."""
    from scipy.ndimage import gaussian_filter, zoom

    image = np.random.default_rng(0).integers(0, 256, (8 * BLOCK, 9 * BLOCK, 3), dtype=np.uint8)
    blurred = gaussian_filter(image.astype(float), (2.5, 2.5, 0), mode="mirror")
    expected = zoom(blurred, (1 / BLOCK, 1 / BLOCK, 1), order=1, mode="mirror", grid_mode=True)
    assert np.abs(shrink(image) - expected).max() < 0.501
    assert (shrink(np.full_like(image, 77)) == 77).all()


REFUSED = {
    "a picture too few": (
        {TWO: zipped(dict(list(HALVES[1].items())[1:]))},
        f"KeyError: '{NAMES[3]}'",
    ),
    "a picture that the table lacks": (
        {TABLE: table(["ISIC_9999999", *NAMES[1:]])},
        "KeyError: 'ISIC_9999999'",
    ),
    "a shorter table": ({TABLE: table(NAMES[1:])}, "ValueError"),
    "another size": (
        {ONE: zipped(HALVES[0] | {f"{NAMES[0]}.jpg": picture(0, (24, 24))})},
        "ValueError",
    ),
    "grey": (
        {ONE: zipped(HALVES[0] | {f"{NAMES[0]}.jpg": picture(0, mode="L")})},
        "RuntimeError",
    ),
    "another format": (
        {ONE: zipped(HALVES[0] | {f"{NAMES[0]}.jpg": picture(0, form="PNG")})},
        "cannot identify image",
    ),
    "a page": ({ONE: b"<html>"}, "File is not a zip file"),
    "another table": ({TABLE: b"a,b\n1,2\n"}, "KeyError: 'image_id'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tiny_ham, refused, what):
    changed, message = REFUSED[what]
    assert message in refused(tiny_ham, changed)
