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

TABLE, ARCHIVE1, ARCHIVE2 = (
    "HAM10000_metadata.csv",
    "HAM10000_images_part_1.zip",
    "HAM10000_images_part_2.zip",
)
DIAGNOSES = ["nv", "akiec", "bcc", "bkl", "df", "mel", "vasc", "nv"]
NAMES = [f"ISIC_{number:07}" for number in (5, 3, 1, 7, 0, 2, 6, 4)]


def picture(seed, width=4 * BLOCK, mode="RGB", form="JPEG"):
    shape = (3 * BLOCK, width, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form)
    return file.getvalue()


PICTURES = {name: picture(seed) for seed, name in enumerate(NAMES)}


def archive(names, folder="", **members):
    """Return an archive of these pictures, and of ``members`` besides or instead."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, content in ({name: PICTURES[name] for name in names} | members).items():
            zipped.writestr(f"{folder}{name}.jpg", content)
    return file.getvalue()


def table(names):
    file = io.StringIO(newline="")
    rows = csv.writer(file)
    rows.writerow(["lesion_id", "image_id", "dx", "dx_type", "age", "dataset"])
    for k, name in enumerate(names):
        rows.writerow([f"HAM_{9 - k // 2}", name, DIAGNOSES[k], "histo", "", ""])
    return file.getvalue().encode()


@pytest.fixture
def tiny_ham(publish):
    """Eight pictures of 24 × 18 pixels, two of each lesion.

    One archive has a folder, as those of some mirrors do, and what macOS adds.
    """
    files = {
        TABLE: table(NAMES),
        ARCHIVE1: archive(NAMES[:3]),
        ARCHIVE2: archive(NAMES[3:], folder="part_2/", **{"._ISIC_0000001": b"x"}),
    }
    return publish("ham10000", {"all": (8, 3, 3, 4)}, {}, files)


def test_rows_are_in_the_order_of_the_names(tiny_ham, tmp_path):
    tiny_ham.put(tmp_path / "ham10000")
    loaded = data.load("ham10000", "all", data_dir=tmp_path)
    numbers = np.argsort(NAMES)
    for row, k in enumerate(numbers):
        pixels = np.asarray(Image.open(io.BytesIO(PICTURES[NAMES[k]])))
        assert np.array_equal(loaded.images[row], shrink(pixels).transpose(2, 0, 1))
        assert loaded.classes[loaded.labels[row]] == DIAGNOSES[k]
    assert loaded["lesion"].tolist() == (3 - numbers // 2).tolist()
    assert loaded.fingerprint.complete


def test_a_file_is_fetched_from_its_own_address(tiny_ham, tmp_path, monkeypatch):
    paths = tiny_ham.spec.paths
    mirror = Mirror({paths[name]: content for name, content in tiny_ham.files.items()})
    spec = dataclasses.replace(tiny_ham.spec, mirrors=(mirror.address,))
    monkeypatch.setitem(data.SETS, "ham10000", spec)
    try:
        data.fetch("ham10000", tmp_path)
    finally:
        mirror.close()
    assert mirror.requests == ["4338392?format=original", "3172585", "3172584"]
    assert data.verify("ham10000", tmp_path) == []


def test_an_image_is_shrunk_as_the_released_code_does_it():
    """By what scikit-image's ``resize`` calls, which samples the middle of each block."""
    from scipy.ndimage import gaussian_filter, zoom

    shape = (8 * BLOCK, 9 * BLOCK, 3)
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    blurred = gaussian_filter(image.astype(float), (2.5, 2.5, 0), mode="mirror")
    expected = zoom(blurred, (1 / BLOCK, 1 / BLOCK, 1), order=1, mode="mirror", grid_mode=True)
    assert np.abs(shrink(image) - expected).max() < 0.501
    assert (shrink(np.full_like(image, 77)) == 77).all()


def with_first(content):
    """Return the first archive with this content in the place of its first picture."""
    return {ARCHIVE1: archive(NAMES[:3], **{NAMES[0]: content})}


REFUSED = {
    "a picture too few": ({ARCHIVE2: archive(NAMES[4:])}, f"KeyError: '{NAMES[3]}'"),
    "a shorter table": ({TABLE: table(NAMES[1:])}, "ValueError"),
    "another table": ({TABLE: b"a,b\n1,2\n"}, "KeyError: 'image_id'"),
    "another size": (with_first(picture(0, width=18)), "ValueError"),
    "grey": (with_first(picture(0, mode="L")), "RuntimeError"),
    "another format": (with_first(picture(0, form="PNG")), "cannot identify image"),
    "a page": ({ARCHIVE1: b"<html>"}, "File is not a zip file"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tiny_ham, refused, changes, message):
    assert message in refused(tiny_ham, changes)
