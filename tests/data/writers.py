"""Tiny sets in the publishers' formats, written by their descriptions: arrays and files.

Each function returns the arrays of each split by name, and the content of each file by name.
"""

import csv
import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image
from scipy.io import savemat

from capslib.data import prepared
from capslib.data.readers import BLOCK, halve, shrink


def write_part(folder, split, arrays, **fields):
    """Prepare a folder by hand that holds a part of a set."""
    defaults = dict(source="a test", licence="none", complete=False, deviations=["a few"])
    prepared.write(folder, defaults | fields, [(split, arrays)])


def idx_bytes(array):
    """Return an array of uint8 in IDX form."""
    lengths = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 0x08, array.ndim]) + lengths + array.tobytes()


def mnist():
    """MNIST with 20 + 10 images of 4 × 5 pixels."""
    rng = np.random.default_rng(0)
    arrays, files = {}, {}
    for split, stem, n in (("train", "train", 20), ("test", "t10k", 10)):
        images = rng.integers(0, 256, (n, 1, 4, 5), dtype=np.uint8)
        labels = rng.permutation(n) % 10
        arrays[split] = {"images": images, "labels": labels}
        files[f"{stem}-images-idx3-ubyte.gz"] = gzip.compress(idx_bytes(images[:, 0]))
        files[f"{stem}-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(labels.astype("u1")))
    return arrays, files


def norb_bytes(array):
    """Return an array of uint8 or int32 in NORB's binary matrix format.

    It stores at least three lengths; unused ones are 1.
    """
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    lengths = [*array.shape, *[1] * (3 - array.ndim)]
    header = struct.pack(f"<{2 + len(lengths)}I", magic, array.ndim, *lengths)
    return header + array.astype(array.dtype.newbyteorder("<")).tobytes()


def smallnorb():
    """Return smallNORB with 1,010 + 7 pairs of 8 × 6 pixels: over two slabs, and under one."""
    rng = np.random.default_rng(0)
    training, testing = "5x46789x9x18x6x2x96x96-training", "5x01235x9x18x6x2x96x96-testing"
    arrays, files = {}, {}
    for split, stem, n in (("train", training, 1010), ("test", testing, 7)):
        images = rng.integers(0, 256, (n, 2, 8, 6), dtype=np.uint8)
        labels, *factors = rng.integers(0, 5, (5, n))
        names = ("instance", "elevation", "azimuth", "lighting")
        arrays[split] = {"images": halve(images), "labels": labels}
        arrays[split] |= zip(names, factors, strict=True)
        info = np.stack(factors, axis=1).astype(np.int32)
        parts = {"dat": images, "cat": labels.astype(np.int32), "info": info}
        for kind, array in parts.items():
            files[f"smallnorb-{stem}-{kind}.mat.gz"] = gzip.compress(norb_bytes(array))
    return arrays, files


def tar_gz(members):
    """Return an archive of (name, content) pairs, or of :class:`tarfile.TarInfo` entries."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            name, content = member
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def cifar_batches():
    """Return six batches of CIFAR-10's binary version, the last one for the test."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (24, 3, 2, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 24)
    records = np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(24, -1)], axis=1)
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    batches = {}
    for name, batch in zip(names, np.split(records, 6), strict=True):
        batches[f"cifar-10-batches-bin/{name}"] = batch.tobytes()
    return images, labels, batches


def cifar10():
    """Return CIFAR-10 with 20 + 4 images of 2 × 3 pixels.

    Batches stand in the archive in another order, with entries that are none.
    """
    images, labels, batches = cifar_batches()
    arrays = {
        "train": {"images": images[:20], "labels": labels[:20]},
        "test": {"images": images[20:], "labels": labels[20:]},
    }
    pipe = tarfile.TarInfo("cifar-10-batches-bin/pipe")
    pipe.type = tarfile.FIFOTYPE
    strangers = [("/etc/passwd", b"root"), ("../../up", b"x"), pipe]
    members = [*reversed(batches.items()), *strangers]
    return arrays, {"cifar-10-binary.tar.gz": tar_gz(members)}


DIAGNOSES = ["nv", "akiec", "bcc", "bkl", "df", "mel", "vasc", "nv"]
NAMES = [f"ISIC_{number:07}" for number in (5, 3, 1, 7, 0, 2, 6, 4)]


def picture(seed, width=4 * BLOCK, mode="RGB", form="JPEG"):
    """Return the bytes of a random picture."""
    shape = (3 * BLOCK, width, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form)
    return file.getvalue()


PICTURES = {name: picture(seed) for seed, name in enumerate(NAMES)}


def picture_archive(names, folder="", **members):
    """Return an archive of these pictures, and of ``members`` besides or instead."""
    file = io.BytesIO()
    contents = {name: PICTURES[name] for name in names} | members
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"{folder}{name}.jpg", content)
    return file.getvalue()


def diagnosis_table(names):
    """Return HAM10000's table: two pictures of each lesion."""
    file = io.StringIO(newline="")
    rows = csv.writer(file)
    rows.writerow(["lesion_id", "image_id", "dx", "dx_type", "age", "dataset"])
    for k, name in enumerate(names):
        rows.writerow([f"HAM_{9 - k // 2}", name, DIAGNOSES[k], "histo", "", ""])
    return file.getvalue().encode()


def ham10000():
    """Return HAM10000 with eight pictures of 24 × 18 pixels, two of each lesion.

    One archive has a folder, as those of some mirrors do, and what macOS adds.
    """
    order = np.argsort(NAMES)
    pixels = [np.asarray(Image.open(io.BytesIO(PICTURES[NAMES[k]]))) for k in order]
    _, labels = np.unique(DIAGNOSES, return_inverse=True)
    arrays = {
        "images": np.stack([shrink(image).transpose(2, 0, 1) for image in pixels]),
        "labels": labels[order],
        "lesion": 3 - order // 2,
    }
    files = {
        "HAM10000_metadata.csv": diagnosis_table(NAMES),
        "HAM10000_images_part_1.zip": picture_archive(NAMES[:3]),
        "HAM10000_images_part_2.zip": picture_archive(
            NAMES[3:], folder="part_2/", **{"._ISIC_0000001": b"x"}
        ),
    }
    return {"all": arrays}, files


def affnist_mat(images, labels):
    """Return a file as the publisher writes it: a structure whose images are columns."""
    fields = {
        "image": images.reshape(len(images), -1).T,
        "label_int": labels[None].astype(np.uint8),
        "affine_params": np.zeros(3),
    }
    file = io.BytesIO()
    savemat(file, {"affNISTdata": fields})
    return file.getvalue()


def affnist(by_digit=False):
    """Return affNIST with 32 variants of 5 digits, variant by variant, or digit by digit.

    Each image has its number, variant by variant, in the upper right corner.
    """
    number = np.arange(32 * 5)
    images = np.zeros((160, 1, 40, 40), np.uint8)
    images[:, 0, 2, 30] = number
    digit = number % 5
    labels = np.array([3, 1, 4, 1, 5])[digit]
    order = number.reshape(32, 5).T.ravel() if by_digit else number
    files = {"test.mat": affnist_mat(images[order], labels[order])}
    return {"test": {"images": images, "labels": labels, "digit": digit}}, files


TINY = {
    "mnist": mnist,
    "smallnorb": smallnorb,
    "cifar10": cifar10,
    "ham10000": ham10000,
    "affnist": affnist,
}
