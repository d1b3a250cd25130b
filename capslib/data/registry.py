"""What is known about each data set before opening a file: authors, terms, sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from capslib.data.readers import (
    Shapes,
    Splits,
    affnist_splits,
    cifar_splits,
    idx_splits,
    lesion_splits,
    norb_splits,
)
from capslib.errors import UserError
from capslib.registry import Registry

__all__ = ["SETS", "DataSet"]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A named data set. ``files`` is empty if it can be loaded from a prepared folder only."""

    name: str
    # Source, licence and deviations go into the manifest.
    source: str
    licence: str
    classes: tuple[str, ...] = ()
    stand_in: bool = False
    # Shapes [N, C, H, W] by split, as a network sees the examples.
    splits: Shapes = field(default_factory=dict)
    # Arrays that each split has at least.
    arrays: tuple[str, ...] = ("images", "labels")
    # The publishers' files and the hashes that they publish, or "".
    files: dict[str, str] = field(default_factory=dict)
    # Turns the files into splits.
    read: Callable[[list[Path], Shapes], Splits] = idx_splits
    # What ``read`` changes.
    deviations: tuple[str, ...] = ()
    # Base addresses, tried in this order; none if the files are got by hand.
    mirrors: tuple[str, ...] = ()
    # What follows a base address for a file, where that is not its name.
    paths: dict[str, str] = field(default_factory=dict)
    # Bytes: no file of the publisher has more, so a download of more is broken off.
    largest: int = 2**32
    # SHA-256 of the manifest that ``fetch`` writes, if known.
    manifest: str = ""
    # SHA-256 of manifests of derived forms that hold every example, made smaller.
    whole: tuple[str, ...] = ()

    @property
    def train_shape(self) -> tuple[int, ...]:
        """[N, C, H, W] of its training split. Raises :class:`UserError` where it has none."""
        if "train" not in self.splits:
            raise UserError(
                f"{self.name} is not split into train and test: choose another set."
            )
        return self.splits["train"]


def _like_mnist(*hashes: str) -> dict:
    """Return the fields that MNIST and the sets in its format share, but for the hashes."""
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return {
        "splits": {"train": (60_000, 1, 28, 28), "test": (10_000, 1, 28, 28)},
        "files": dict(zip(names, hashes, strict=True)),
        "largest": 30_000_000,
    }


def _norb_files(*hashes: str) -> dict[str, str]:
    names = []
    for split in ("5x46789x9x18x6x2x96x96-training", "5x01235x9x18x6x2x96x96-testing"):
        for content in ("dat", "cat", "info"):
            names.append(f"smallnorb-{split}-{content}.mat.gz")
    return dict(zip(names, hashes, strict=True))


_TINTS = tuple(f"colour {k}" for k in range(10))
_CIFAR = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_LESIONS = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
_OFF_TARGETS = ("not an off-target", "off-target")
_ALL = (
    DataSet(  # LeCun, Cortes, Burges
        name="mnist",
        source="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0",
        classes=tuple("0123456789"),
        **_like_mnist(
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            # The authors' own page is the last one, because it often refuses.
            "http://yann.lecun.com/exdb/mnist/",
        ),
        manifest="fcbc4156c943e1f26ec116f95592d1c88813b8f76466008e1fadcefdcb4e3bf3",
    ),
    DataSet(  # Xiao, Rasul, Vollgraf
        name="fashion_mnist",
        source="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        classes=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        **_like_mnist(
            "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/"
            "data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        manifest="4c7b77f0c01cdc27c3c1e59241d2581b7dea4f8230936b83739a4e2ba04d70e4",
    ),
    DataSet(  # Clanuwat et al.; CODH
        name="kmnist",
        source="http://codh.rois.ac.jp/kmnist/",
        licence="CC BY-SA 4.0",
        # Romanised: few plotting fonts have hiragana.
        classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        **_like_mnist(
            "md5:bdb82020997e1d708af4cf47b453dcf7",
            "md5:e144d726b3acfaa3e44228e80efcd344",
            "md5:5c965bf0a639b31b8f53240b1b52f4d7",
            "md5:7320c461ea6c1c855c0b718fb2a4b134",
        ),
        mirrors=("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    ),
    DataSet(  # Alpaydin, Kaynak; see sklearn.datasets.load_digits
        name="digits",
        source="https://archive.ics.uci.edu/ml/datasets/"
        "Optical+Recognition+of+Handwritten+Digits",
        licence="see its page; ships with scikit-learn",
        classes=tuple("0123456789"),
        stand_in=True,
        splits={"train": (1_433, 1, 8, 8), "test": (364, 1, 8, 8)},
    ),
    DataSet(  # LeCun, Huang, Bottou
        name="smallnorb",
        source="https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
        licence="research use; cite LeCun, Huang, Bottou 2004",
        classes=("animal", "human", "airplane", "truck", "car"),
        splits={"train": (24_300, 2, 48, 48), "test": (24_300, 2, 48, 48)},
        arrays=("images", "labels", "instance", "elevation", "azimuth", "lighting"),
        files=_norb_files(
            "sha256:5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
            "sha256:2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
            "sha256:de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
            "sha256:cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
            "sha256:ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
            "sha256:16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
        ),
        read=norb_splits,
        # TensorFlow 1 resizes bilinearly about the upper left corner: at half the size it
        # samples at 0, 2, 4, …, between no pixels.
        deviations=(
            "96×96 pixels averaged over 2×2 to 48×48, where the released code keeps every "
            "second row and column",
        ),
        mirrors=("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",),
        largest=300_000_000,
        whole=("56974224e69bf8edb01b90438a1350a52de27461b48d7c553633488c6d74d7ec",),
    ),
    DataSet(  # Krizhevsky, Nair, Hinton
        name="cifar10",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky 2009",
        classes=_CIFAR,
        splits={"train": (50_000, 3, 32, 32), "test": (10_000, 3, 32, 32)},
        # Not the Python version: that is a pickle.
        files={"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
        read=cifar_splits,
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        largest=200_000_000,
    ),
    DataSet(
        name="toys",
        source="capslib.data.toys",
        licence="MIT, as the code",
        classes=("animal", "human", "airplane", "truck", "car"),
        stand_in=True,
        splits={"train": (24_300, 2, 48, 48), "test": (24_300, 2, 48, 48)},
    ),
    DataSet(
        name="tints",
        source="capslib.data.generated",
        licence="MIT, as the code",
        classes=_TINTS,
        stand_in=True,
        splits={"train": (1000, 3, 16, 16), "test": (300, 3, 16, 16)},
    ),
    DataSet(
        name="moles",
        source="capslib.data.generated",
        licence="MIT, as the code",
        classes=_LESIONS,
        stand_in=True,
        splits={"all": (300, 3, 18, 24)},
    ),
    DataSet(
        name="guides",
        source="capslib.data.generated",
        licence="MIT, as the code",
        classes=_OFF_TARGETS,
        stand_in=True,
        splits={"all": (800, 2, 4, 23)},
    ),
    DataSet(  # Tschandl, Rosendahl, Kittler
        name="ham10000",
        source="https://doi.org/10.7910/DVN/DBW86T",
        licence="CC BY-NC 4.0",
        classes=_LESIONS,
        splits={"all": (10_015, 3, 75, 100)},
        arrays=("images", "labels", "lesion"),
        files={
            "HAM10000_metadata.csv": "md5:8f85fb1aa29d80a2797247e434deb79d",
            "HAM10000_images_part_1.zip": "md5:4639bfa73ab251610530a97c898e6e46",
            "HAM10000_images_part_2.zip": "md5:da43d6cc50f6613013be07e8986b384b",
        },
        read=lesion_splits,
        mirrors=("https://dataverse.harvard.edu/api/access/datafile/",),
        largest=3_000_000_000,
        paths={
            "HAM10000_metadata.csv": "4338392?format=original",
            "HAM10000_images_part_1.zip": "3172585",
            "HAM10000_images_part_2.zip": "3172584",
        },
        whole=("e94f2fa3a9ab44b7e8667cfd04f148898a0f8454ea8feb05826fa2cdc445bcb9",),
    ),
    DataSet(  # Tieleman; 32 variants of each test digit of MNIST
        name="affnist",
        source="https://www.cs.toronto.edu/~tijmen/affNIST/",
        licence="see its page",
        classes=tuple("0123456789"),
        splits={"test": (320_000, 1, 40, 40)},
        arrays=("images", "labels", "digit"),
        files={"test.mat": ""},
        read=affnist_splits,
    ),
    DataSet(  # Peng et al.; the pairs with few mismatches, as a network sees them
        name="crispr",
        source="https://doi.org/10.1093/bioinformatics/bty558",
        licence="supplementary material; cite the article",
        classes=_OFF_TARGETS,
        splits={"all": (16_499, 2, 4, 23)},
        arrays=("guide", "target", "labels", "mismatches", "nrg_pam"),
    ),
)
SETS = Registry("data set", {s.name: s for s in _ALL})
