"""What is known about each data set before any of its files is opened: whose it is, under which terms, where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

from capslib.errors import unknown


@dataclass(frozen=True)
class File:
    """One file as its publishers give it out. ``hash`` is ``sha256:…``, or ``md5:…`` where they publish only that."""

    name: str
    hash: str
    size: int | None = None  # bytes; a truncated copy is found without reading it


@dataclass(frozen=True)
class DataSet:
    """A named data set. ``files`` and ``mirrors`` are empty where ``fetch`` cannot get the set.

    ``source``, ``licence`` go into the manifest of a set that is prepared here. ``splits`` gives the number of examples of the
    complete set, ``shape`` the [C, H, W] of its images; a prepared folder that calls itself complete is held to both.
    """

    name: str
    title: str
    source: str
    licence: str
    classes: tuple[str, ...] = ()
    stand_in: bool = False
    embedded: bool = False  # needs no files at all
    splits: dict[str, int] = field(default_factory=dict)
    shape: tuple[int, int, int] | None = None
    files: dict[str, tuple[File, File]] = field(default_factory=dict)  # split: (images, labels), both IDX
    mirrors: tuple[str, ...] = ()  # base addresses, tried in this order

    @property
    def all_files(self) -> list[File]:
        return [file for pair in self.files.values() for file in pair]


def _idx_files(hashes: dict[str, str], sizes: dict[str, int] | None = None) -> dict[str, tuple[File, File]]:
    """The four files that MNIST and the sets made in its image share their names with."""

    def file(stem: str) -> File:
        return File(f"{stem}-ubyte.gz", hashes[stem], sizes[stem] if sizes else None)

    return {
        "train": (file("train-images-idx3"), file("train-labels-idx1")),
        "test": (file("t10k-images-idx3"), file("t10k-labels-idx1")),
    }


_DIGITS = tuple("0123456789")
_LIKE_MNIST = {"splits": {"train": 60_000, "test": 10_000}, "shape": (1, 28, 28)}

_ALL = (
    DataSet(
        name="mnist",
        title="MNIST handwritten digits (LeCun, Cortes, Burges)",
        source="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0",
        classes=_DIGITS,
        files=_idx_files(
            {
                "train-images-idx3": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
            {
                "train-images-idx3": 9_912_422,
                "train-labels-idx1": 28_881,
                "t10k-images-idx3": 1_648_877,
                "t10k-labels-idx1": 4_542,
            },
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",  # the authors' own page, last because it often refuses
        ),
        **_LIKE_MNIST,
    ),
    DataSet(
        name="fashion_mnist",
        title="Fashion-MNIST, pictures of clothing (Xiao, Rasul, Vollgraf)",
        source="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        files=_idx_files(
            {
                "train-images-idx3": "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1": "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3": "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1": "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
            {
                "train-images-idx3": 26_421_880,
                "train-labels-idx1": 29_515,
                "t10k-images-idx3": 4_422_102,
                "t10k-labels-idx1": 5_148,
            },
        ),
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        **_LIKE_MNIST,
    ),
    DataSet(
        name="kmnist",
        title="Kuzushiji-MNIST, handwritten hiragana (Clanuwat et al.; CODH)",
        source="http://codh.rois.ac.jp/kmnist/",
        licence="CC BY-SA 4.0",
        classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),  # romanised: few plotting fonts have hiragana
        files=_idx_files(
            {
                "train-images-idx3": "md5:bdb82020997e1d708af4cf47b453dcf7",
                "train-labels-idx1": "md5:e144d726b3acfaa3e44228e80efcd344",
                "t10k-images-idx3": "md5:5c965bf0a639b31b8f53240b1b52f4d7",
                "t10k-labels-idx1": "md5:7320c461ea6c1c855c0b718fb2a4b134",
            }
        ),
        mirrors=("https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
        **_LIKE_MNIST,
    ),
    DataSet(
        name="digits",
        title="Optical recognition of handwritten digits, the 1,797 scans inside scikit-learn (Alpaydin, Kaynak)",
        source="https://doi.org/10.24432/C50P49",
        licence="CC BY 4.0",
        classes=_DIGITS,
        stand_in=True,
        embedded=True,
        splits={"train": 1_433, "test": 364},
        shape=(1, 8, 8),
    ),
    # The sets of the chapters to come. Their prepared folders load; nothing here can download them.
    DataSet(
        name="cifar10",
        title="CIFAR-10 (Krizhevsky, Nair, Hinton)",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky 2009",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        splits={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
    ),
    DataSet(
        name="affnist",
        title="affNIST, MNIST under random affine maps (Tieleman)",
        source="https://www.cs.toronto.edu/~tijmen/affNIST/",
        licence="none stated; made from MNIST (CC BY-SA 3.0)",
        classes=_DIGITS,
    ),
    DataSet(
        name="smallnorb",
        title="small NORB, stereo pictures of toys (Huang, LeCun)",
        source="https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
        licence="research use; cite LeCun, Huang, Bottou 2004",
        classes=("animal", "human", "airplane", "truck", "car"),
        splits={"train": 24_300, "test": 24_300},
        shape=(2, 96, 96),
    ),
    DataSet(
        name="ham10000",
        title="HAM10000, dermatoscopic pictures (Tschandl, Rosendahl, Kittler)",
        source="https://doi.org/10.7910/DVN/DBW86T",
        licence="CC BY-NC 4.0",
        classes=("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"),
    ),
    DataSet(
        name="crispr",
        title="CRISPR-Cas9 off-target pairs (Peng et al. 2018; Chuai et al. 2018)",
        source="https://doi.org/10.1093/bioinformatics/bty558",
        licence="supplementary material; cite both articles",
        classes=("not an off-target", "off-target"),
    ),
    DataSet(
        name="toys",
        title="Rendered toys with the factors of small NORB",
        source="capslib",
        licence="MIT",
        stand_in=True,
    ),
)
SETS: dict[str, DataSet] = {s.name: s for s in _ALL}


def dataset(name: str) -> DataSet:
    """The set of that name. Raises :class:`~capslib.errors.UserError` that suggests the nearest name."""
    if name not in SETS:
        raise unknown("data set", name, SETS)
    return SETS[name]
