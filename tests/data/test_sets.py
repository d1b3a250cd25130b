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
from pathlib import Path

import numpy as np
import pooch
import pytest
from helpers import Harm
from sklearn.datasets import load_digits
from writers import write_part

from capslib import data
from capslib.data import prepared
from capslib.errors import UserError

IMAGES = "train/images.npy"
SHA256_OF_DIGITS = "f86c50159214fc6c62d2624b90db1c4a4e86be80430346d121692b5a9cd7703c"


@pytest.fixture
def folder(tiny, tmp_path):
    """A prepared folder of the tiny set, with the publishers' files in it."""
    tiny.put(tmp_path / "data" / "mnist")
    data.load("mnist", "train", data_dir=tmp_path / "data")
    return tmp_path / "data" / "mnist"


def files(folder):
    """Return the names of all files below a folder, but for locks."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)) for path in paths}


# ------------------------------------------------------------------------------ the right way


def test_publishers_files_are_prepared_on_first_use(tiny, tmp_path):
    tiny.put(tmp_path / "mnist")
    loaded = data.load("mnist", "train", data_dir=tmp_path)
    assert isinstance(loaded.images, np.memmap)
    assert not loaded.images.flags.writeable
    assert loaded.classes == tuple("0123456789")
    arrays = {"train/images.npy", "train/labels.npy", "test/images.npy", "test/labels.npy"}
    assert files(tmp_path / "mnist") == {"manifest.json", *arrays, *tiny.files}
    sha256 = pooch.file_hash(tmp_path / "mnist" / "manifest.json")
    expected = dict(name="mnist", sha256=sha256, stand_in=False, complete=True)
    assert loaded.fingerprint == data.DataFingerprint(**expected)


def test_where_data_is_looked_for(folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=str(tmp_path / "cache" / "capslib")):
        data.load("mnist", "train")
    monkeypatch.setenv("CAPSLIB_DATA", str(folder.parent))
    assert len(data.load("mnist", "train")) == 20
    monkeypatch.setenv("CAPSLIB_DATA", str(tmp_path / "elsewhere"))
    assert len(data.load("mnist", "train", data_dir=folder.parent)) == 20
    with pytest.raises(UserError, match="elsewhere"):
        data.load("mnist", "train")


def test_the_digits_are_those_of_scikit_learn():
    """Each scan once, a fifth of each class for the test."""
    scans = load_digits()
    pixels = np.round(scans.images * 255 / 16).astype(np.uint8)
    expected = zip(map(bytes, pixels), scans.target, strict=True)
    pairs = []
    for name in ("train", "test"):
        split = data.load("digits", name)
        assert (split.images.dtype, split.labels.dtype) == (np.uint8, np.int64)
        assert split.images.shape == data.SETS["digits"].splits[name]
        pairs += zip(map(bytes, split.images), split.labels, strict=True)
    assert sorted(pairs) == sorted(expected)
    share = np.bincount(split.labels) / np.bincount(scans.target)
    assert share == pytest.approx(0.2, abs=0.006)
    # Another hash means other scans in scikit-learn: records made with them cannot be compared.
    assert split.fingerprint.sha256 == SHA256_OF_DIGITS
    assert split.fingerprint.stand_in


def test_a_folder_that_somebody_prepared_loads_with_all_its_arrays(tmp_path):
    numbers = np.arange(6)
    arrays = {"images": np.zeros((6, 1, 40, 40), np.uint8), "angle": numbers}
    arrays |= {"labels": numbers % 2, "digit": numbers}
    write_part(tmp_path / "affnist", "test", arrays, classes=["even", "odd"])
    loaded = data.load("affnist", "test", data_dir=tmp_path)
    np.testing.assert_array_equal(loaded["angle"], numbers)
    assert loaded.classes == ("even", "odd")
    assert (loaded.fingerprint.complete, loaded.fingerprint.deviations) == (False, ("a few",))
    with pytest.raises(UserError, match=r"Did you mean 'angle'\?"):
        loaded["angles"]
    with pytest.raises(UserError, match="split of affnist 'train'"):
        data.load("affnist", "train", data_dir=tmp_path)


def test_letters_are_prepared_in_their_own_form(tmp_path):
    """A network sees guides and targets one-hot."""
    arrays = dict(data.load("guides", "all").arrays)
    write_part(tmp_path / "crispr", "all", arrays)
    assert len(data.load("crispr", "all", data_dir=tmp_path)) == 800
    del arrays["mismatches"]
    write_part(tmp_path / "crispr", "all", arrays)
    with pytest.raises(UserError, match="all lacks mismatches"):
        data.require("crispr", tmp_path)


def row_of(name: str, folder: Path) -> data.Row:
    """Return what the list of sets says of one."""
    return next(row for row in data.describe(folder) if row.name == name)


def test_the_list_of_sets_says_what_can_be_loaded(tiny, folder, tmp_path):
    rows = {row.name: row for row in data.describe(folder.parent)}
    assert list(rows) == list(data.SETS)
    sizes = "train 20×1×4×5, test 10×1×4×5"
    expected = data.Row("mnist", "real", "yes", sizes, "CC BY-SA 3.0", str(folder))
    assert rows["mnist"] == expected
    assert (rows["digits"].kind, rows["digits"].state) == ("stand-in", "yes")
    assert (rows["kmnist"].state, rows["kmnist"].folder) == ("no", "")

    published = tmp_path / "published" / "mnist"
    tiny.put(published, without=["train-labels-idx1-ubyte.gz"])
    assert row_of("mnist", published.parent).state == "no"
    tiny.put(published)
    assert row_of("mnist", published.parent).state == "to prepare"
    assert files(published) == set(tiny.files), "a list changes nothing"


def test_the_page_tells_how_to_add_a_set(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "book" / "data.md").read_text(encoding="utf-8")
    section = page.partition("## A set of your own")[2]
    code = section.partition("```python")[2].partition("```")[0]
    monkeypatch.setattr(data.SETS, "data", dict(data.SETS.data))
    arrays = {}
    for split, n in {"train": 400, "test": 100}.items():
        arrays[f"{split}_images"] = np.zeros((n, 1, 8, 8), np.uint8)
        arrays[f"{split}_labels"] = np.arange(n) % 2
    (tmp_path / "bars").mkdir()
    np.savez(tmp_path / "bars" / "bars.npz", **arrays)
    exec(code, {})
    loaded = data.load("bars", "test", data_dir=tmp_path)
    assert (loaded.images.shape, loaded.labels[:3].tolist()) == ((100, 1, 8, 8), [0, 1, 0])
    assert loaded.classes == ("vertical", "horizontal")


# ------------------------------------------------------------------------ names, missing files


def test_unknown_names(tmp_path):
    """A mistyped split is reported before any file is looked for: here there are none."""
    with pytest.raises(UserError, match=r"Did you mean 'fashion_mnist'\?"):
        data.load("fashon_mnist", "train", data_dir=tmp_path)
    for name in ("mnist", "digits"):
        with pytest.raises(UserError, match=rf"split of {name} 'trian'. Did you mean 'train'"):
            data.load(name, "trian", data_dir=tmp_path)
    with pytest.raises(UserError, match="Unknown data set"):
        data.require("imagenet")


def load_first(name, folder):
    return data.load(name, next(iter(data.SETS[name].splits)), data_dir=folder)


READ = pytest.mark.parametrize("call", [data.require, data.verify, load_first])


@READ
@pytest.mark.parametrize("name", ["mnist", "ham10000"])
def test_a_missing_set_says_which_files_from_where_and_where_to(publish, tmp_path, name, call):
    spec = data.SETS[name]
    with pytest.raises(UserError) as caught:
        call(name, tmp_path)
    command = f"capslib data fetch {name}"
    for part in (*spec.files, *spec.mirrors, str(tmp_path / name), command, "$CAPSLIB_DATA"):
        assert part in str(caught.value)
    assert files(tmp_path) == set()


@pytest.mark.parametrize("call", [data.require, data.fetch])
def test_a_set_without_files_says_how_to_get_it(tmp_path, call):
    with pytest.raises(UserError, match="cannot get it yet") as caught:
        call("crispr", tmp_path)
    assert str(tmp_path / "crispr") in str(caught.value)


def test_a_file_that_is_missing_is_named_alone(tiny, tmp_path):
    missing = "t10k-labels-idx1-ubyte.gz"
    tiny.put(tmp_path / "mnist", without=[missing])
    with pytest.raises(UserError) as caught:
        data.require("mnist", tmp_path)
    assert [name for name in tiny.files if name in str(caught.value)] == [missing]


@READ
def test_a_damaged_publishers_file(tiny, tmp_path, call):
    name = "train-images-idx3-ubyte.gz"
    path, content = tmp_path / "mnist" / name, tiny.files[name]
    tiny.put(path.parent)
    path.write_bytes(content[:50])
    with pytest.raises(UserError, match=r"\(50 bytes\)") as caught:
        call("mnist", tmp_path)
    assert str(path) in str(caught.value)
    for expected in (content, content[:50]):
        assert hashlib.sha256(expected).hexdigest() in str(caught.value)
    assert files(path.parent) == set(tiny.files)  # nothing was prepared


# ---------------------------------------------------------------------------- damaged folders


def read_manifest(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def change_manifest(folder, **fields):
    text = json.dumps(read_manifest(folder) | fields)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def change_entry(folder, path, **fields):
    """Change what the manifest says of an array, which it need not know yet."""
    arrays = read_manifest(folder)["arrays"]
    arrays[path] = arrays.get(path, {"sha256": "0" * 64}) | fields
    change_manifest(folder, arrays=arrays)


def remove(folder, *paths):
    """Remove arrays from the folder and from its manifest: it is whole in itself."""
    arrays = read_manifest(folder)["arrays"]
    for path in paths:
        (folder / path).unlink()
        del arrays[path]
    change_manifest(folder, arrays=arrays)


def reshape(folder, *shape):
    """Write other images than the publishers', and a manifest that says so."""
    arrays = {IMAGES: np.zeros(shape, np.uint8), "train/labels.npy": np.zeros(shape[0], int)}
    for path, array in arrays.items():
        np.save(folder / path, array)
        sha256 = pooch.file_hash(folder / path)
        change_entry(folder, path, shape=list(array.shape), sha256=sha256)


def change_header(folder, *shape):
    """Write another shape over the header of the images, and leave their bytes."""
    header = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    with (folder / IMAGES).open("r+b") as file:
        file.write(header.getvalue())


def change_header_and_manifest(folder, *shape):
    change_header(folder, *shape)
    change_entry(folder, IMAGES, shape=list(shape))
    change_manifest(folder, complete=False)


def add(folder, array, version=None):
    """Put another array into the folder, and into the manifest."""
    with (folder / "train" / "more.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version)
    change_entry(folder, "train/more.npy", shape=list(array.shape), dtype=str(array.dtype))


def without_images(folder):
    """Remove the images, and return the path where they were."""
    path = folder / IMAGES
    path.unlink()
    return path


DAMAGES = {}


def damage(message):
    """Register a function that damages a prepared folder, and what is said of the damage."""

    def register(function):
        DAMAGES[function.__name__] = function, message
        return function

    return register


@damage("not valid")
def manifest_cut(folder):
    os.truncate(folder / "manifest.json", 99)


@damage("not valid: source Field required")
def manifest_without_fields(folder):
    (folder / "manifest.json").write_text('{"name": "mnist"}', encoding="utf-8")


@damage("to 'kmnist'")
def manifest_of_another_set(folder):
    change_manifest(folder, name="kmnist")


@damage("not valid: complete")
def manifest_in_words(folder):
    change_manifest(folder, complete="yes")


@damage("not valid: arrays")
def manifest_of_nothing(folder):
    change_manifest(folder, arrays={})


@damage("match pattern")
def manifest_that_leaves_the_folder(folder):
    entry = {"shape": [1], "dtype": "uint8", "sha256": "0" * 64}
    change_manifest(folder, arrays={"../x.npy": entry})


@damage("train/images.npy cannot be mapped")
def array_gone(folder):
    (folder / IMAGES).unlink()


@damage("it has 500 bytes, and")
def array_cut(folder):
    os.truncate(folder / IMAGES, 500)


@damage("it has 530 bytes, and")
def array_that_goes_on(folder):
    os.truncate(folder / IMAGES, 530)


@damage("the manifest says")
def array_of_another_shape(folder):
    change_header(folder, 20, 1, 5, 4)


@damage("cannot be mapped")
def array_that_is_a_pickle(folder):
    (folder / IMAGES).write_bytes(pickle.dumps(Harm()))


@damage("object, not numbers")
def array_of_objects(folder):
    add(folder, np.array([Harm()] * 20))


@damage("int64 [], which holds nothing")
def array_of_a_number(folder):
    add(folder, np.array(1))


@damage("its format is 3.0, expected 1.0 or 2.0")
def array_of_a_later_format(folder):
    add(folder, np.zeros(20), version=(3, 0))


@damage("has the shape [1000000000000, 1, 4, 5]; mnist has")
def a_million_million_rows(folder):
    change_header_and_manifest(folder, 10**12, 1, 4, 5)


@damage("which holds nothing")
def minus_one_row(folder):
    change_header_and_manifest(folder, -1, 1, 4, 5)


@damage("it is no regular file")
def pipe(folder):
    os.mkfifo(without_images(folder))


@damage("no regular file")
def device(folder):
    without_images(folder).symlink_to("/dev/zero")


@damage("there is no such file")
def endless_link(folder):
    path = without_images(folder)
    path.symlink_to(path)


@damage("train lacks labels")
def no_labels(folder):
    remove(folder, "train/labels.npy")


@damage("train/images has the shape [19, 1, 4, 5]; mnist has [20, 1, 4, 5]")
def fewer_images(folder):
    reshape(folder, 19, 1, 4, 5)


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_prepared_folder(folder, monkeypatch, damage, message):
    monkeypatch.chdir(folder)
    damage(folder)
    for call in (load_first, data.require):
        with pytest.raises(UserError) as caught:
            call("mnist", folder.parent)
        assert str(folder) in str(caught.value)
        assert message in str(caught.value)
        assert "capslib data fetch mnist" in str(caught.value)
    assert message in " ".join(data.verify("mnist", folder.parent))
    row = row_of("mnist", folder.parent)
    assert (row.state, row.folder) == ("damaged", str(folder))
    assert not (folder / "harm").exists()
    # As the message says. The publishers' files are in the same folder.
    (folder / "manifest.json").unlink()
    data.fetch("mnist", folder.parent)
    assert data.verify("mnist", folder.parent) == []


def test_a_manifest_that_may_not_be_read_is_an_error_with_its_reason(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"manifest.json cannot be read: Permission denied"):
        data.load("mnist", "train", data_dir=folder.parent)
    assert row_of("mnist", folder.parent).state == "damaged"


@pytest.mark.parametrize(
    ("images", "pixels", "labels", "numbers", "message"),
    [
        ((3, 4, 5), "uint8", 3, "int64", "expected uint8 with 4 dimensions"),
        ((3, 1, 4, 5), "float32", 3, "int64", "expected uint8 with 4 dimensions"),
        ((3, 1, 4, 5), "uint8", 3, "uint8", "expected int64 with 1 dimensions"),
        ((3, 1, 4, 5), "uint8", 4, "int64", "differ in length"),
    ],
)
def test_form_of_images_and_labels(tmp_path, images, pixels, labels, numbers, message):
    """Also of a set whose shapes nobody knows."""
    arrays = {"images": np.zeros(images, pixels), "labels": np.zeros(labels, numbers)}
    write_part(tmp_path / "somebodys", "train", arrays)
    with pytest.raises(UserError, match=message):
        prepared.check(tmp_path / "somebodys")


def test_a_part_of_a_set_can_be_used(folder):
    remove(folder, "test/images.npy", "test/labels.npy")
    reshape(folder, 19, 1, 4, 5)
    change_manifest(folder, complete=False, deviations=["no test images"])
    assert row_of("mnist", folder.parent).state == "in part"
    assert len(data.load("mnist", "train", data_dir=folder.parent)) == 19
    with pytest.raises(UserError, match="split of mnist 'test'"):
        data.require("mnist", folder.parent)


# ---------------------------------------------------------------------------- spoilt contents


def flip(path):
    """Change one pixel, which no header shows."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("call", [load_first, data.require, data.fetch])
def test_spoilt_contents_are_an_error_of_every_call_that_gives_the_set(folder, call):
    flip(folder / IMAGES)
    with pytest.raises(UserError, match=f"{IMAGES} does not have the SHA-256") as caught:
        call("mnist", folder.parent)
    assert "`capslib data verify mnist`" in str(caught.value)
    assert "for example with `capslib data fetch mnist`" in str(caught.value)
    assert data.verify("mnist", folder.parent) == [str(caught.value)]
    assert len(data.load("mnist", "test", data_dir=folder.parent)), "what is sound can be used"


@pytest.mark.parametrize("label", [-1, 10])
def test_labels_are_of_the_classes_that_the_set_has(folder, label):
    path = folder / "train" / "labels.npy"
    labels = np.load(path)
    labels[3] = label
    np.save(path, labels)
    change_entry(folder, "train/labels.npy", sha256=pooch.file_hash(path))
    message = rf"train/labels.npy has labels from .*{label}.*and there are 10 classes"
    for call in (load_first, data.require):
        with pytest.raises(UserError, match=message) as caught:
            call("mnist", folder.parent)
    assert data.verify("mnist", folder.parent) == [str(caught.value)]


def test_an_array_is_read_once_until_its_file_changes(folder, monkeypatch):
    data.require("mnist", folder.parent)
    with monkeypatch.context() as patch:
        patch.setattr(pooch, "file_hash", None)
        data.require("mnist", folder.parent)
    flip(folder / IMAGES)
    with pytest.raises(UserError, match="does not have the SHA-256"):
        data.require("mnist", folder.parent)
    flip(folder / IMAGES)
    data.require("mnist", folder.parent)


def test_a_cache_that_cannot_be_written_only_costs_another_reading(folder, cache):
    shutil.rmtree(cache)
    cache.write_text("a file in the place of the folder")
    data.require("mnist", folder.parent)
    flip(folder / IMAGES)
    with pytest.raises(UserError, match="does not have the SHA-256"):
        data.load("mnist", "train", data_dir=folder.parent)


def test_a_complete_set_has_the_manifest_that_the_publishers_files_give(folder, monkeypatch):
    """Also where arrays and manifest were changed together."""
    sha256 = pooch.file_hash(folder / "manifest.json")
    spec = dataclasses.replace(data.SETS["mnist"], manifest=sha256)
    monkeypatch.setitem(data.SETS, "mnist", spec)
    assert data.verify("mnist", folder.parent) == []
    flip(folder / IMAGES)
    change_entry(folder, IMAGES, sha256=pooch.file_hash(folder / IMAGES))
    [problem] = data.verify("mnist", folder.parent)
    assert "it is not the one that `capslib data fetch mnist` writes" in problem
    change_manifest(folder, deviations=["one pixel is another"])
    assert data.verify("mnist", folder.parent) == []


# --------------------------------------------------------------------------- whole or nothing


@pytest.mark.parametrize("call", [3, 8])
def test_interrupted_preparation_leaves_nothing(tiny, tmp_path, monkeypatch, call):
    tiny.put(tmp_path / "mnist")
    (tmp_path / "mnist" / "notes.txt").write_text("mine", encoding="utf-8")
    names, file_hash = [], pooch.file_hash

    def interrupt(name, *options):
        """Hash four files that are read, then four arrays that are written."""
        names.append(name)
        if len(names) == call:
            raise KeyboardInterrupt
        return file_hash(name, *options)

    with monkeypatch.context() as patch:
        patch.setattr(pooch, "file_hash", interrupt)
        with pytest.raises(KeyboardInterrupt):
            data.load("mnist", "train", data_dir=tmp_path)
    assert files(tmp_path / "mnist") == {*tiny.files, "notes.txt"}
    data.require("mnist", tmp_path)
    assert "notes.txt" in files(tmp_path / "mnist")


def test_nowhere_to_write(tiny, tmp_path):
    (tmp_path / "file").touch()
    message = r"cannot be prepared in .*file.below.mnist: .*data-dir"
    with pytest.raises(UserError, match=message):
        data.fetch("mnist", tmp_path / "file" / "below")


def test_full_disk(tiny, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    tiny.put(tmp_path / "mnist")
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match=r"No space left on device.*\$CAPSLIB_DATA"):
        data.load("mnist", "train", data_dir=tmp_path)
    assert files(tmp_path / "mnist") == set(tiny.files)


def test_leftovers_of_a_killed_process_are_removed(tiny, tmp_path):
    """It was killed after moving the splits, before moving the manifest."""
    folder = tiny.put(tmp_path / "mnist")
    (folder / ".unfinished" / "train").mkdir(parents=True)
    (folder / "train").mkdir()
    (folder / IMAGES).write_text("half", encoding="utf-8")
    data.require("mnist", tmp_path)
    assert data.verify("mnist", tmp_path) == []
    assert not (folder / ".unfinished").exists()


PREPARE = """
import pickle, sys
from capslib.data import publishers
print("ready", flush=True)
folder = publishers.prepare(*pickle.load(sys.stdin.buffer), download=False)
print(folder, (folder / "manifest.json").stat().st_mtime_ns, "torch" in sys.modules)
"""


def test_two_processes_prepare_at_once_and_without_torch(tiny, tmp_path):
    tiny.put(tmp_path / "mnist")
    command, pipes = [sys.executable, "-c", PREPARE], dict(stdin=-1, stdout=-1)
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == b"ready\n"
    for process in processes:
        pickle.dump((tiny.spec, tmp_path), process.stdin)
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0].decode().split() for process in processes]
    assert outputs[0] == outputs[1]  # the second one found the work of the first
    assert outputs[0][::2] == [str(tmp_path / "mnist"), "False"]
    assert data.verify("mnist", tmp_path) == []
