"""Writing IDX, from the format's description and not from the code under test."""


def idx_bytes(array):
    """An array of uint8 in IDX form."""
    return bytes([0, 0, 0x08, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape) + array.tobytes()
