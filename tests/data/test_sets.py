"""Named sets: finding, checking and loading them, and the errors when that fails."""

import dataclasses
import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pooch
import pytest

from capslib import data
from capslib.data import prepared
from capslib.errors import UserError


@pytest.fixture
def folder(tiny, tmp_path):
    """A prepared folder of the tiny set."""
    tiny.put(tmp_path / "data" / "mnist")
    data.load("mnist", "train", data_dir=tmp_path / "data")
    return tmp_path / "data" / "mnist"


def tree(folder):
    return {
        str(p.relative_to(folder)) for p in folder.rglob("*") if not p.name.endswith(".lock")
    }


def present(root):
    return [row.name for row in data.describe(root) if row.folder]


# ------------------------------------------------------------------------------------------------------- the right way


@pytest.mark.parametrize("split", ["train", "test"])
def test_publishers_files_are_prepared_on_first_use(tiny, tmp_path, split):
    tiny.put(tmp_path / "mnist")
    found = data.load("mnist", split, data_dir=tmp_path)
    images, labels = tiny.arrays[split]
    np.testing.assert_array_equal(found.images, images[:, None])
    np.testing.assert_array_equal(found.labels, labels)
    assert (found.images.dtype, found.labels.dtype, len(found)) == (
        np.uint8,
        np.int64,
        len(labels),
    )
    assert isinstance(found.images, np.memmap)
    assert not found.images.flags.writeable
    assert found.classes == tuple("0123456789")
    ours = {
        "manifest.json",
        "test",
        "test/images.npy",
        "test/labels.npy",
        "train",
        "train/images.npy",
        "train/labels.npy",
    }
    assert tree(tmp_path / "mnist") == ours | set(
        tiny.files
    )  # the publishers' files are still there
    raw = (tmp_path / "mnist" / "manifest.json").read_bytes()
    sha256 = hashlib.sha256(raw).hexdigest()
    assert found.fingerprint == data.DataFingerprint(
        name="mnist", sha256=sha256, stand_in=False, complete=True
    )
    assert data.verify("mnist", tmp_path) == []


def test_where_data_is_looked_for(tiny, folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=str(tmp_path / "cache" / "capslib")):
        data.load("mnist", "train")
    monkeypatch.setenv("CAPSLIB_DATA", str(folder.parent))
    assert len(data.load("mnist", "train")) == 20
    monkeypatch.setenv("CAPSLIB_DATA", str(tmp_path / "elsewhere"))
    assert len(data.load("mnist", "train", data_dir=folder.parent)) == 20
    with pytest.raises(UserError, match="elsewhere"):
        data.load("mnist", "train")


def test_nowhere_to_write(tiny, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(
        UserError,
        match=r"cannot be prepared in .*file.below.mnist: .*Choose another data folder with --data-dir",
    ):
        data.fetch("mnist", tmp_path / "file" / "below")


def test_digits():
    train, test = data.load("digits", "train"), data.load("digits", "test")
    assert train.images.shape == (1433, 1, 8, 8)
    assert test.images.shape == (364, 1, 8, 8)
    assert {k: data.load("digits", k).images.shape for k in ("train", "test")} == data.SETS[
        "digits"
    ].splits
    assert (train.images.dtype, train.labels.dtype) == (np.uint8, np.int64)
    assert (int(train.images.min()), int(train.images.max())) == (0, 255)
    both = np.bincount(train.labels) + np.bincount(test.labels)
    assert np.abs(np.bincount(test.labels) / both - 0.2).max() < 0.006  # stratified

    from sklearn.datasets import load_digits

    scans = load_digits()
    ours = {
        (bytes(i), int(y))
        for part in (train, test)
        for i, y in zip(part.images, part.labels, strict=True)
    }
    assert ours == {
        (bytes(np.round(i * 255 / 16).astype(np.uint8)), int(y))
        for i, y in zip(scans.images, scans.target, strict=True)
    }
    assert train.fingerprint == test.fingerprint
    assert train.fingerprint.stand_in
    # Another hash means other scans in scikit-learn: records made with them cannot be compared.
    assert (
        train.fingerprint.sha256
        == "f86c50159214fc6c62d2624b90db1c4a4e86be80430346d121692b5a9cd7703c"
    )
    assert data.verify("digits") == []


def test_a_folder_that_somebody_prepared_loads_with_what_it_has_beside(tmp_path):
    rng = np.random.default_rng(0)
    group = {
        "images": rng.integers(0, 256, (6, 1, 40, 40), dtype=np.uint8),
        "labels": np.arange(6) % 2,
        "digit": np.arange(6),
        "angle": np.arange(6),
    }
    about = {
        "source": "a test",
        "licence": "none",
        "complete": False,
        "deviations": ["six images"],
    }
    prepared.write(
        tmp_path / "affnist", {**about, "classes": ["even", "odd"]}, [("test", group)]
    )
    found = data.load("affnist", "test", data_dir=tmp_path)
    np.testing.assert_array_equal(found["angle"], np.arange(6))
    assert found.classes == ("even", "odd")
    assert (found.fingerprint.complete, found.fingerprint.deviations) == (
        False,
        ("six images",),
    )
    with pytest.raises(UserError, match=r"Did you mean 'angle'\?"):
        found["angles"]
    with pytest.raises(UserError, match="split of affnist 'train'"):
        data.load("affnist", "train", data_dir=tmp_path)


def test_describe(tiny, folder, tmp_path):
    rows = {row.name: row for row in data.describe(folder.parent)}
    assert list(rows) == list(data.SETS)
    place = str(folder)
    assert rows["mnist"] == (
        "mnist",
        "real",
        "yes",
        "train 20×1×4×5, test 10×1×4×5",
        "CC BY-SA 3.0",
        place,
    )
    assert rows["digits"][:4] == (
        "digits",
        "stand-in",
        "yes",
        "train 1,433×1×8×8, test 364×1×8×8",
    )
    assert (rows["kmnist"].state, rows["kmnist"].folder) == ("no", "")
    assert all(row.licence for row in rows.values())
    assert present(folder.parent) == ["mnist"]

    reshaped(folder, (19, 1, 4, 5))
    change_manifest(folder, complete=False, deviations=["a few"])
    assert data.describe(folder.parent)[0].state == "in part"
    assert len(data.load("mnist", "train", data_dir=folder.parent)) == 19
    tiny.put(tmp_path / "two" / "mnist", without=["train-labels-idx1-ubyte.gz"])
    assert data.describe(tmp_path / "two")[0].state == "no"
    assert present(tmp_path / "two") == []
    tiny.put(tmp_path / "two" / "mnist")
    row = data.describe(tmp_path / "two")[0]
    assert (row.state, row.folder) == ("to prepare", str(tmp_path / "two" / "mnist"))
    assert not (
        tmp_path / "two" / "mnist" / "manifest.json"
    ).exists()  # describe changes nothing


# ---------------------------------------------------------------------------------------------------------- bad input


def test_unknown_names(tmp_path):
    """A mistyped split is reported before any file is looked for: here there are none."""
    with pytest.raises(UserError, match=r"Did you mean 'fashion_mnist'\?"):
        data.load("fashon_mnist", "train", data_dir=tmp_path)
    for name in ("mnist", "digits", "toys"):
        with pytest.raises(
            UserError, match=rf"split of {name} 'trian'. Did you mean 'train'\?"
        ):
            data.load(name, "trian", data_dir=tmp_path)
    with pytest.raises(UserError, match="Unknown data set"):
        data.require("imagenet")


def test_missing_and_offline(tiny, tmp_path):
    started = time.perf_counter()
    with pytest.raises(UserError) as caught:
        data.require("mnist", tmp_path)
    assert time.perf_counter() - started < 2
    for part in (
        *tiny.files,
        "capslib data fetch mnist",
        *tiny.spec.mirrors,
        str(tmp_path / "mnist"),
        "$CAPSLIB_DATA",
    ):
        assert part in str(caught.value)
    with pytest.raises(UserError, match="is missing"):
        data.load("mnist", "train", data_dir=tmp_path)
    with pytest.raises(UserError, match="is missing"):
        data.verify("mnist", tmp_path)
    assert tree(tmp_path) == set()


@pytest.mark.parametrize(
    "name", ["mnist", "fashion_mnist", "kmnist", "smallnorb", "cifar10", "ham10000"]
)
def test_a_missing_set_says_which_files_from_where_and_where_to(publish, tmp_path, name):
    spec = data.SETS[name]
    for call in (
        data.require,
        data.verify,
        lambda n, d: data.load(n, next(iter(spec.splits)), data_dir=d),
    ):
        with pytest.raises(UserError) as caught:
            call(name, tmp_path)
        for part in (
            *spec.files,
            *spec.mirrors,
            str(tmp_path / name),
            f"capslib data fetch {name}",
        ):
            assert part in str(caught.value)


def test_the_page_tells_how_to_add_a_set(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "book" / "data.md"
    code = (
        page.read_text(encoding="utf-8")
        .partition("## A set of your own")[2]
        .partition("```python")[2]
        .partition("```")[0]
    )
    monkeypatch.setattr(data.SETS, "data", dict(data.SETS.data))
    (tmp_path / "bars").mkdir()
    sizes = {"train": 400, "test": 100}
    images = {f"{split}_images": np.zeros((n, 1, 8, 8), np.uint8) for split, n in sizes.items()}
    np.savez(
        tmp_path / "bars" / "bars.npz",
        **images,
        **{f"{split}_labels": np.arange(n) % 2 for split, n in sizes.items()},
    )
    exec(code, {})
    found = data.load("bars", "test", data_dir=tmp_path)
    assert (found.images.shape, found.labels[:3].tolist()) == ((100, 1, 8, 8), [0, 1, 0])
    assert found.classes == ("vertical", "horizontal")


def test_a_set_without_files_says_how_to_get_it(tmp_path):
    for call in (
        data.require,
        data.fetch,
        lambda n, d: data.load(n, "all", data_dir=d, download=True),
    ):
        with pytest.raises(UserError, match="cannot get it yet") as caught:
            call("crispr", tmp_path)
        assert str(tmp_path / "crispr") in str(caught.value)


def test_what_is_no_picture_is_prepared_in_its_own_form(tmp_path):
    """Guides and targets as letters; a network sees them one-hot."""
    about = {"source": "here", "licence": "none", "complete": False, "deviations": []}
    arrays = dict(data.load("guides", "all").arrays)
    prepared.write(tmp_path / "crispr", about, [("all", arrays)])
    assert len(data.load("crispr", "all", data_dir=tmp_path)) == 800
    del arrays["mismatches"]
    prepared.write(tmp_path / "crispr", about, [("all", arrays)])
    with pytest.raises(UserError, match="all lacks mismatches"):
        data.require("crispr", tmp_path)


@pytest.mark.parametrize(
    "without", [["train-images-idx3-ubyte.gz"], ["t10k-labels-idx1-ubyte.gz"]]
)
def test_one_file_is_missing(tiny, tmp_path, without):
    tiny.put(tmp_path / "mnist", without=without)
    with pytest.raises(UserError) as caught:
        data.require("mnist", tmp_path)
    assert [name for name in tiny.files if name in str(caught.value)] == without


@pytest.mark.parametrize(
    "call", [data.require, lambda n, d: data.load(n, "test", data_dir=d), data.verify]
)
@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_publishers_file(tiny, tmp_path, damage, call):
    place = tiny.put(tmp_path / "mnist")
    name = "train-images-idx3-ubyte.gz"
    content = bytearray(tiny.files[name])
    if damage == "truncated":
        del content[50:]
    else:
        content[-20] ^= 1
    (place / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        call("mnist", tmp_path)
    assert str(place / name) in str(caught.value)
    for digest in (hashlib.sha256(tiny.files[name]), hashlib.sha256(content)):
        assert digest.hexdigest() in str(caught.value)
    assert f"({len(content)} bytes)" in str(caught.value)
    assert tree(place) == set(tiny.files)  # nothing was prepared


def change_manifest(folder, **fields):
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps({**manifest, **fields}), encoding="utf-8")


def objects(folder):
    with (folder / "train" / "images.npy").open("wb") as file:
        np.save(file, np.array([{"an": "object"}] * 20), allow_pickle=True)


def without(folder, *gone):
    """Arrays are neither in the folder nor in its manifest: it is whole in itself."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for name in gone:
        (folder / name).unlink()
    change_manifest(
        folder, arrays={k: v for k, v in manifest["arrays"].items() if k not in gone}
    )


def reshaped(folder, shape):
    """Other images than the publishers', and a manifest that says so."""
    np.save(folder / "train" / "images.npy", np.zeros(shape, np.uint8))
    np.save(folder / "train" / "labels.npy", np.zeros(shape[0], np.int64))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    arrays = {"train/images.npy": list(shape), "train/labels.npy": [shape[0]]}
    for name, said in arrays.items():
        manifest["arrays"][name] |= {"shape": said, "sha256": pooch.file_hash(folder / name)}
    change_manifest(folder, **manifest)


def header(folder, shape):
    """Write another shape over the header of the images, and leave their bytes."""
    content = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, fields)
    with (folder / "train" / "images.npy").open("r+b") as file:
        file.write(content.getvalue())


def told(folder, array, **fields):
    """Change what the manifest says of an array."""
    arrays = json.loads((folder / "manifest.json").read_text())["arrays"]
    change_manifest(
        folder, arrays=arrays | {array: arrays.get(array, {"sha256": "0" * 64}) | fields}
    )


def header_and_manifest(folder, shape):
    header(folder, shape)
    told(folder, "train/images.npy", shape=list(shape))
    change_manifest(folder, complete=False)


def beside(folder, array):
    """Put another array beside the images, and into the manifest."""
    with (
        warnings.catch_warnings(action="ignore"),
        (folder / "train" / "more.npy").open("wb") as file,
    ):
        np.save(file, array)  # which warns of formats that not every release of numpy reads
    told(folder, "train/more.npy", shape=list(array.shape), dtype=str(array.dtype))


def instead(folder, make):
    """Put something else into the place of the images."""
    path = folder / "train" / "images.npy"
    path.unlink()
    make(path)


class Trap:
    """Unpickling this object creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


DAMAGE = {
    "manifest is cut": (
        lambda f: (f / "manifest.json").write_bytes((f / "manifest.json").read_bytes()[:99]),
        "not valid",
    ),
    "manifest is empty": (lambda f: (f / "manifest.json").write_bytes(b""), "not valid"),
    "manifest is a list": (
        lambda f: (f / "manifest.json").write_text("[]", encoding="utf-8"),
        "not valid",
    ),
    "manifest lacks a field": (
        lambda f: (f / "manifest.json").write_text('{"name": "mnist"}', encoding="utf-8"),
        "not valid: source Field required",
    ),
    "manifest of another set": (
        lambda f: change_manifest(f, name="kmnist"),
        "belongs to 'kmnist'",
    ),
    "manifest with a word for a truth": (
        lambda f: change_manifest(f, complete="yes"),
        "not valid: complete",
    ),
    "manifest with no arrays": (lambda f: change_manifest(f, arrays={}), "not valid: arrays"),
    "manifest that leaves the folder": (
        lambda f: change_manifest(
            f, arrays={"../x.npy": {"shape": [1], "dtype": "uint8", "sha256": "0" * 64}}
        ),
        "should match pattern",
    ),
    "array is gone": (
        lambda f: (f / "train" / "images.npy").unlink(),
        "train/images.npy cannot be mapped",
    ),
    "array is cut": (
        lambda f: (f / "train" / "images.npy").write_bytes(bytes(200)),
        "cannot be mapped",
    ),
    "array lost its end": (
        lambda f: (f / "train" / "images.npy").write_bytes(
            (f / "train" / "images.npy").read_bytes()[:-1]
        ),
        "cannot be mapped",
    ),
    "array of another shape": (
        lambda f: np.save(f / "train" / "images.npy", np.zeros((20, 1, 5, 4), np.uint8)),
        "the manifest says",
    ),
    "array of another type": (
        lambda f: np.save(f / "train" / "labels.npy", np.zeros(20, np.int32)),
        "the manifest says",
    ),
    "array of objects": (objects, "cannot be mapped"),
    "array longer than its header": (
        lambda f: (f / "train" / "labels.npy").write_bytes(
            (f / "train" / "labels.npy").read_bytes() + b"more"
        ),
        "it has 292 bytes, and int64 [20] takes 288",
    ),
    "header of more rows than there are numbers": (
        lambda f: header(f, (10**19, 1, 4, 5)),
        "the manifest says",
    ),
    "header of minus one row": (lambda f: header(f, (-1, 1, 4, 5)), "the manifest says"),
    "header and manifest of 10¹² rows": (
        lambda f: header_and_manifest(f, (10**12, 1, 4, 5)),
        "has the shape [1000000000000, 1, 4, 5]; mnist has",
    ),
    "header and manifest of minus one row": (
        lambda f: header_and_manifest(f, (-1, 1, 4, 5)),
        "which holds nothing",
    ),
    "header and manifest of no row": (
        lambda f: header_and_manifest(f, (0, 1, 4, 5)),
        "which holds nothing",
    ),
    "header and manifest of one row more": (
        lambda f: header_and_manifest(f, (19, 1, 4, 5)),
        "takes 508",
    ),
    "array of one number": (
        lambda f: beside(f, np.array(1)),
        "it is int64 [], which holds nothing",
    ),
    "array of texts": (lambda f: beside(f, np.array(["a"] * 20)), "it holds <U1, not numbers"),
    "array of nothing": (lambda f: beside(f, np.zeros(20, "V0")), "not numbers"),
    "header of a later format": (
        lambda f: beside(f, np.zeros(20, [("ト", "u1")])),
        "its format is 3.0, expected 1.0 or 2.0",
    ),
    "pipe": (lambda f: instead(f, os.mkfifo), "it is no regular file"),
    "device": (
        lambda f: instead(f, lambda path: path.symlink_to("/dev/zero")),
        "it is no regular file",
    ),
    "folder": (lambda f: instead(f, Path.mkdir), "it is no regular file"),
    "link that leads to itself": (
        lambda f: instead(f, lambda path: path.symlink_to(path)),
        "there is no such file",
    ),
    "no labels": (lambda f: without(f, "train/labels.npy"), "train lacks labels"),
    "no such split": (
        lambda f: without(f, "train/images.npy", "train/labels.npy"),
        "train lacks images, labels",
    ),
    "images of another size": (
        lambda f: reshaped(f, (20, 1, 5, 4)),
        "train/images has the shape [20, 1, 5, 4]; mnist has [20, 1, 4, 5]",
    ),
    "fewer images than it says": (
        lambda f: reshaped(f, (19, 1, 4, 5)),
        "train/images has the shape [19, 1, 4, 5]; mnist has",
    ),
    "images without a shape": (
        lambda f: change_manifest(
            f,
            arrays={
                **json.loads((f / "manifest.json").read_text(encoding="utf-8"))["arrays"],
                "train/images.npy": {"shape": [], "dtype": "uint8", "sha256": "0"},
            },
        ),
        "has the shape []",
    ),
}


def test_a_manifest_that_may_not_be_read_is_an_error_with_its_reason(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"manifest.json cannot be read: Permission denied"):
        data.load("mnist", "train", data_dir=folder.parent)
    assert data.describe(folder.parent)[0].state == "damaged"


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_prepared_folder(folder, damage):
    spoil, what = DAMAGE[damage]
    spoil(folder)
    for call in (
        lambda: data.load("mnist", "train", data_dir=folder.parent),
        lambda: data.require("mnist", folder.parent),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert str(folder) in str(caught.value)
        assert what in str(caught.value)
        assert "capslib data fetch mnist" in str(caught.value)
    assert what in " ".join(data.verify("mnist", folder.parent))
    assert data.describe(folder.parent)[0].state == "damaged"
    assert present(folder.parent) == ["mnist"]
    (
        folder / "manifest.json"
    ).unlink()  # as the message says; the publishers' files are in the same folder
    data.fetch("mnist", folder.parent)
    assert data.verify("mnist", folder.parent) == []


@pytest.mark.parametrize(
    ("group", "what"),
    [
        (
            {"images": np.zeros((3, 4, 5), np.uint8), "labels": np.zeros(3, np.int64)},
            "expected uint8",
        ),
        (
            {"images": np.zeros((3, 1, 4, 5), np.float32), "labels": np.zeros(3, np.int64)},
            "expected uint8",
        ),
        (
            {"images": np.zeros((3, 1, 4, 5), np.uint8), "labels": np.zeros(3, np.uint8)},
            "expected int64",
        ),
        (
            {"images": np.zeros((3, 1, 4, 5), np.uint8), "labels": np.zeros(4, np.int64)},
            "differ in length",
        ),
    ],
)
def test_form_of_images_and_labels(tmp_path, group, what):
    about = {"source": "a test", "licence": "none", "complete": False, "deviations": []}
    prepared.write(
        tmp_path / "somebodys", about, [("train", group)]
    )  # a set of which we know no shapes
    with pytest.raises(UserError, match=what):
        prepared.check(tmp_path / "somebodys")


def test_a_part_that_lacks_a_split_is_said_before_anything_runs(folder):
    without(folder, "test/images.npy", "test/labels.npy")
    change_manifest(folder, complete=False, deviations=["no test images"])
    assert len(data.load("mnist", "train", data_dir=folder.parent)) == 20
    with pytest.raises(UserError, match="split of mnist 'test'"):
        data.require("mnist", folder.parent)


def flip(path):
    """Change one pixel, which no header shows."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("split", ["train", "test"])
def test_spoilt_contents_are_told_by_every_verb_that_gives_the_set(folder, split):
    root, other = folder.parent, {"train": "test", "test": "train"}[split]
    flip(folder / split / "images.npy")
    for call in (
        lambda: data.load("mnist", split, data_dir=root),
        lambda: data.require("mnist", root),
        lambda: data.fetch("mnist", root),
    ):
        with pytest.raises(
            UserError, match=f"{split}/images.npy does not have the SHA-256"
        ) as caught:
            call()
        assert "`capslib data verify mnist`" in str(caught.value)
        assert "prepare the set again, for example with `capslib data fetch mnist`" in str(
            caught.value
        )
    assert data.verify("mnist", root) == [str(caught.value)]
    assert len(data.load("mnist", other, data_dir=root)), "what is sound can be used"


@pytest.mark.parametrize("label", [-1, 10, 255])
def test_labels_are_of_the_classes_that_the_set_has(folder, label):
    path = folder / "test" / "labels.npy"
    labels = np.load(path)
    labels[3] = label
    np.save(path, labels)
    told(folder, "test/labels.npy", sha256=pooch.file_hash(path))
    for call in (
        lambda: data.load("mnist", "test", data_dir=folder.parent),
        lambda: data.require("mnist", folder.parent),
    ):
        with pytest.raises(
            UserError,
            match=rf"test/labels.npy has labels from .*{label}.*and there are 10 classes",
        ):
            call()


def test_an_array_is_read_once_until_its_file_changes(folder, cache, monkeypatch):
    data.require("mnist", folder.parent)
    with monkeypatch.context() as patch:
        patch.setattr(pooch, "file_hash", None)
        data.require("mnist", folder.parent)
    flip(folder / "train" / "images.npy")
    with pytest.raises(UserError, match="does not have the SHA-256"):
        data.require("mnist", folder.parent)
    flip(folder / "train" / "images.npy")
    data.require("mnist", folder.parent)


def test_a_cache_that_cannot_be_written_only_costs_another_reading(folder, cache):
    shutil.rmtree(cache)
    cache.write_text("a file in the place of the folder")
    data.require("mnist", folder.parent)
    flip(folder / "test" / "labels.npy")
    with pytest.raises(UserError, match="does not have the SHA-256"):
        data.load("mnist", "test", data_dir=folder.parent)


def test_a_whole_set_has_the_manifest_that_the_publishers_files_give(folder, monkeypatch):
    right = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    monkeypatch.setitem(
        data.SETS, "mnist", dataclasses.replace(data.SETS["mnist"], manifest=right)
    )
    assert data.verify("mnist", folder.parent) == []
    flip(folder / "train" / "images.npy")
    told(folder, "train/images.npy", sha256=pooch.file_hash(folder / "train" / "images.npy"))
    [problem] = data.verify("mnist", folder.parent)
    assert (
        "calls the set complete, but it is not the one that `capslib data fetch mnist` writes"
        in problem
    )
    change_manifest(folder, deviations=["one pixel is another"])
    assert data.verify("mnist", folder.parent) == []


def test_no_pickle_is_ever_opened(folder, tmp_path):
    for name in ("train/images.npy", "manifest.json"):
        (folder / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
        with pytest.raises(UserError):
            data.load("mnist", "train", data_dir=folder.parent)
        data.verify("mnist", folder.parent)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung"))).close()
    assert (tmp_path / "sprung").exists()  # the trap works


# ------------------------------------------------------------------------------------------------------ whole or nothing


@pytest.mark.parametrize("call", [3, 5, 8])
def test_interrupted_preparation_leaves_nothing(tiny, tmp_path, monkeypatch, call):
    tiny.put(tmp_path / "mnist")
    (tmp_path / "mnist" / "notes.txt").write_text("mine", encoding="utf-8")
    mine = {*tiny.files, "notes.txt"}
    calls = []

    def interrupt(*args, **kwargs):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return digest(*args, **kwargs)

    digest = pooch.file_hash  # called for four files read, then for four arrays written
    with monkeypatch.context() as patch:
        patch.setattr(pooch, "file_hash", interrupt)
        with pytest.raises(KeyboardInterrupt):
            data.load("mnist", "train", data_dir=tmp_path)
    assert tree(tmp_path / "mnist") == mine
    data.load("mnist", "train", data_dir=tmp_path)
    assert data.verify("mnist", tmp_path) == []
    assert tree(tmp_path / "mnist") > mine


def test_full_disk(tiny, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    tiny.put(tmp_path / "mnist")
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match=r"No space left on device.*\$CAPSLIB_DATA"):
        data.load("mnist", "train", data_dir=tmp_path)
    assert tree(tmp_path / "mnist") == set(tiny.files)


def test_leftovers_of_a_killed_process_are_removed(tiny, tmp_path):
    tiny.put(tmp_path / "mnist")
    (tmp_path / "mnist" / ".unfinished" / "train").mkdir(parents=True)
    (
        tmp_path / "mnist" / "train"
    ).mkdir()  # killed after moving the splits, before moving the manifest
    (tmp_path / "mnist" / "train" / "images.npy").write_text("half", encoding="utf-8")
    assert len(data.load("mnist", "train", data_dir=tmp_path)) == 20
    assert data.verify("mnist", tmp_path) == []
    assert not (tmp_path / "mnist" / ".unfinished").exists()


PREPARE = """
import pickle, sys
from capslib.data import publishers
print("ready", flush=True)
folder = publishers.prepare(*pickle.load(sys.stdin.buffer), download=False)
print(folder, (folder / "manifest.json").stat().st_mtime_ns, "torch" in sys.modules)
"""


def test_two_processes_prepare_at_once_and_without_torch(tiny, tmp_path):
    tiny.put(tmp_path / "mnist")
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    both = [subprocess.Popen([sys.executable, "-c", PREPARE], **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == [b"ready\n"] * 2
    for process in both:
        pickle.dump((tiny.spec, tmp_path), process.stdin)
        process.stdin.flush()
    first, second = (process.communicate(timeout=60)[0].decode().split() for process in both)
    assert (
        first == second
    )  # the second process found the work of the first and did not repeat it
    assert first[::2] == [str(tmp_path / "mnist"), "False"]
    assert data.verify("mnist", tmp_path) == []
