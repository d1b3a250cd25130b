"""Write the publishers' formats after their descriptions, independently of the code under test."""

import gzip
import io
import struct
import tarfile


def idx_bytes(array):
    """An array of uint8 in IDX form."""
    return (
        bytes([0, 0, 0x08, array.ndim])
        + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
        + array.tobytes()
    )


def norb_bytes(array):
    """An array of uint8 or int32 in NORB's binary matrix format, which stores at least three lengths; unused ones are 1."""
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    lengths = [*array.shape, *[1] * (3 - array.ndim)]
    return (
        struct.pack(f"<{2 + len(lengths)}I", magic, array.ndim, *lengths)
        + array.astype(array.dtype.newbyteorder("<")).tobytes()
    )


def cifar_records(images, labels):
    """A batch of CIFAR-10's binary version: for each image one byte of label, then its pixels."""
    return b"".join(
        bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
    )


def tar_gz(members):
    """An archive of ``members``: (name, content) pairs, or :class:`tarfile.TarInfo` for members without content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return gzip.compress(file.getvalue(), mtime=0)
