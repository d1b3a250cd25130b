"""Writing IDX, from the format's description and not from the code under test."""

TYPES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
    """An array in IDX form."""
    head = bytes([0, 0, TYPES[array.dtype.str[1:]], array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()
