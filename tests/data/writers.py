"""Write the publishers' formats by their descriptions, independently of the code under test."""

import gzip
import io
import struct
import tarfile

from capslib.data import prepared


def idx_bytes(array):
    """Return an array of uint8 in IDX form."""
    lengths = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 0x08, array.ndim]) + lengths + array.tobytes()


def norb_bytes(array):
    """Return an array of uint8 or int32 in NORB's binary matrix format.

    It stores at least three lengths; unused ones are 1.
    """
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    lengths = [*array.shape, *[1] * (3 - array.ndim)]
    header = struct.pack(f"<{2 + len(lengths)}I", magic, array.ndim, *lengths)
    return header + array.astype(array.dtype.newbyteorder("<")).tobytes()


def cifar_records(images, labels):
    """Return a batch of CIFAR-10's binary version: a byte of label, then the pixels."""
    records = []
    for image, label in zip(images, labels, strict=True):
        records.append(bytes([label]) + image.tobytes())
    return b"".join(records)


def tar_gz(members):
    """Return an archive of (name, content) pairs, or of :class:`tarfile.TarInfo` entries."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            name, content = member
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(file.getvalue(), mtime=0)


def write_part(folder, split, arrays, **fields):
    """Prepare a folder by hand that holds a part of a set."""
    defaults = dict(source="a test", licence="none", complete=False, deviations=["a few"])
    prepared.write(folder, defaults | fields, [(split, arrays)])
